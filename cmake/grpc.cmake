# gRPC and protobuf from Debian's static archives. --exclude-libs,ALL keeps their symbols out of the
# dynamic table, so that they live beside the protobuf inside libtorch.
# One question to pkg-config, which walks through all of Abseil for it; pkg_check_modules asks ten.
execute_process(COMMAND ${PKG_CONFIG_EXECUTABLE} --static --libs-only-l grpc++ protobuf
                OUTPUT_VARIABLE grpc_libraries COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "-l[^ \n]+" grpc_libraries "${grpc_libraries}")
list(TRANSFORM grpc_libraries REPLACE "^-l" "")
list(REMOVE_DUPLICATES grpc_libraries)
# The thread sanitizer can be told to leave out whole shared libraries that it did not compile, and no part of a program.
set(grpc_archives)
foreach(lib ${grpc_libraries})
  if(TIDEPOOL_SANITIZE STREQUAL "thread")
    find_library(grpc_${lib}_archive NAMES lib${lib}.so lib${lib}.a NAMES_PER_DIR)
  else()
    find_library(grpc_${lib}_archive NAMES lib${lib}.a)
  endif()
  if(grpc_${lib}_archive AND NOT lib MATCHES "^(rt|dl|atomic|pthread|m|c)$")
    list(APPEND grpc_archives ${grpc_${lib}_archive})
  endif()
endforeach()
add_library(tidepool_grpc INTERFACE)
target_link_libraries(tidepool_grpc INTERFACE -Wl,--exclude-libs,ALL -Wl,--start-group ${grpc_archives} -Wl,--end-group
                      Threads::Threads dl rt)
