# cmake -DIN=file -DOUT=file.cc -DHEADER=its.h -DNAMESPACE=n -DDECLARE="std::string_view F()" -P embed_text.cmake: a C++ file with a function
# that returns the text of IN, in which {{include NAME}} is the file NAME beside it. The text may not hold the delimiter, )embedded".
file(READ "${IN}" text)
get_filename_component(folder "${IN}" DIRECTORY)
while(text MATCHES "{{include ([^}]*)}}")
  file(READ "${folder}/${CMAKE_MATCH_1}" part)
  string(REPLACE "{{include ${CMAKE_MATCH_1}}}" "${part}" text "${text}")
endwhile()
file(WRITE "${OUT}" "#include \"${HEADER}\"\n\nnamespace ${NAMESPACE} {\n\n${DECLARE} {\n  return R\"embedded(${text})embedded\";\n}\n\n}  // namespace ${NAMESPACE}\n")
