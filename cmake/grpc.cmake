# gRPC and protobuf from Debian's static archives. --exclude-libs,ALL keeps their symbols out of the
# dynamic table, so that they live beside the protobuf inside libtorch.
pkg_check_modules(GRPC_STATIC REQUIRED grpc++)
set(grpc_archives)
foreach(lib ${GRPC_STATIC_STATIC_LIBRARIES} protobuf)
  find_library(grpc_${lib}_archive NAMES lib${lib}.a)
  if(grpc_${lib}_archive AND NOT lib MATCHES "^(rt|dl|atomic|pthread|m|c)$")
    list(APPEND grpc_archives ${grpc_${lib}_archive})
  endif()
endforeach()
list(REMOVE_DUPLICATES grpc_archives)
add_library(tidepool_grpc INTERFACE)
target_link_libraries(tidepool_grpc INTERFACE -Wl,--exclude-libs,ALL -Wl,--start-group ${grpc_archives} -Wl,--end-group
                      Threads::Threads dl rt)
