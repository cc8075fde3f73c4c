# cmake -DIN=file -DOUT=file.cc -DHEADER=its.h -DNAMESPACE=n -DDECLARE="std::string_view F()" -P embed_text.cmake: a C++ file with a function
# that returns the text of IN. The text may not hold the delimiter, )embedded".
file(READ "${IN}" text)
file(WRITE "${OUT}" "#include \"${HEADER}\"\n\nnamespace ${NAMESPACE} {\n\n${DECLARE} {\n  return R\"embedded(${text})embedded\";\n}\n\n}  // namespace ${NAMESPACE}\n")
