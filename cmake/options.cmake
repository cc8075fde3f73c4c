# Compiler cache, linker and sanitizers.
find_program(CCACHE ccache)
if(CCACHE)
  # A second clone, in another folder, finds what the first one compiled.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_SOURCE_DIR}/cmake/compiler_cache ${CMAKE_SOURCE_DIR})
endif()
find_program(MOLD mold)
if(MOLD)
  add_link_options(-fuse-ld=mold)
endif()
set(TIDEPOOL_SANITIZE "" CACHE STRING "address,undefined or thread")
if(TIDEPOOL_SANITIZE)
  add_compile_options(-fsanitize=${TIDEPOOL_SANITIZE} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${TIDEPOOL_SANITIZE})
  if(TIDEPOOL_SANITIZE STREQUAL "thread")
    # Which clone a processor takes is asked before the sanitizer is there, and that code calls it: every program would end
    # as it starts.
    add_compile_options("-Dtarget_clones(...)=")
  endif()
endif()

# What a build costs is mostly templates of the standard library and of nlohmann/json, made anew in every source. So
# sources of a folder are compiled several at a time; names in their anonymous namespaces have to differ. OFF for tools
# that read one source at a time.
option(TIDEPOOL_UNITY "Compile several sources of a folder at a time" ON)
if(TIDEPOOL_UNITY)
  add_compile_options(-Wno-subobject-linkage)  # which takes a file of several sources for a header
endif()

# tidepool_library(name SRCS a.cc b.cc DEPS x y [SINGLE] [COLD]): a static library; the DEPS line tells what the folder
# depends on. SINGLE: its sources are compiled one by one, so that an edit of one is compiled in seconds. COLD: what it
# does is done once, or for people; -O1 compiles it in three quarters of the time.
function(tidepool_library name)
  cmake_parse_arguments(ARG "SINGLE;COLD" "" "SRCS;DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SRCS})
  if(TIDEPOOL_UNITY AND NOT ARG_SINGLE)
    set_target_properties(${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 10)
  endif()
  if(ARG_COLD)
    target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>)
  endif()
  target_include_directories(${name} PUBLIC ${CMAKE_SOURCE_DIR})
  target_link_libraries(${name} PUBLIC ${ARG_DEPS})
endfunction()

# tidepool_test(name SRCS a_test.cc DEPS x [LABELS cpu] [TIMEOUT s]): one GoogleTest binary, one ctest entry.
function(tidepool_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SRCS;DEPS;LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 600)  # for what hangs: ten times and more what any takes beside others
  endif()
  if(NOT ARG_LABELS)
    set(ARG_LABELS cpu)
  endif()
  add_executable(${name} ${ARG_SRCS})
  if(NOT TARGET tidepool_test_main)
    add_library(tidepool_test_main STATIC ${CMAKE_SOURCE_DIR}/tests/main.cc)
    target_link_libraries(tidepool_test_main PUBLIC GTest::gmock GTest::gtest)
  endif()
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} tidepool_test_main)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  # passive: threads that spin while they wait make two tests at once many times slower.
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT}
                       ENVIRONMENT "OMP_WAIT_POLICY=passive")
endfunction()
