# Plug-ins: one file each, found by the build. A folder of plug-ins is listed when the build is made (and again, by
# itself, when a file comes or goes); the table of what its files define is written by cmake/plugin_table.cmake.
set(TIDEPOOL_PLUGINS "" CACHE PATH "Folder of plug-ins of your own outside of this tree: FOLDER/rewards/*.cc, FOLDER/tasks/*.cc, ...")
if(TIDEPOOL_PLUGINS)
  get_filename_component(outside ${TIDEPOOL_PLUGINS} ABSOLUTE BASE_DIR ${CMAKE_SOURCE_DIR})
  set(kinds rewards tasks games control_tasks losses advantages families policies tests)
  file(GLOB folders RELATIVE ${outside} ${outside}/*)
  list(REMOVE_ITEM folders ${kinds})
  list(FILTER folders EXCLUDE REGEX "\\.")  # a README.md is no folder of plug-ins
  if(NOT IS_DIRECTORY ${outside} OR folders)
    list(JOIN kinds ", " known)
    message(FATAL_ERROR "TIDEPOOL_PLUGINS: found ${outside} with [${folders}]; expected a folder with some of ${known} in it")
  endif()
endif()

# tidepool_plugins(TARGET t HEADERS h.h ... NAMESPACE n KINDS Reward ... FOLDERS rewards ... [DISTINCT]): files in FOLDERS are
# sources of `t`, compiled one by one, so that a new one costs its own seconds alone; each defines one plug-in or more with
# TP_PLUGIN(KIND, name) (core/base/plugin.h). HEADERS have the structs and declare the tables, RewardPlugins() and so on.
# DISTINCT: a name stands for one plug-in of all these kinds.
function(tidepool_plugins)
  cmake_parse_arguments(ARG "DISTINCT" "TARGET;NAMESPACE" "HEADERS;KINDS;FOLDERS" ${ARGN})
  set(files)
  foreach(folder ${ARG_FOLDERS})
    file(GLOB found CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*.cc)
    list(APPEND files ${found})
    if(TIDEPOOL_PLUGINS)
      get_filename_component(outside ${TIDEPOOL_PLUGINS} ABSOLUTE BASE_DIR ${CMAKE_SOURCE_DIR})
      file(GLOB found CONFIGURE_DEPENDS ${outside}/${folder}/*.cc)
      list(APPEND files ${found})
    endif()
  endforeach()
  list(GET ARG_KINDS 0 first)
  string(TOLOWER ${first} first)
  set(table ${CMAKE_CURRENT_BINARY_DIR}/${first}_table.cc)
  set(writer ${CMAKE_SOURCE_DIR}/cmake/plugin_table.cmake)
  string(REPLACE ";" "|" file_list "${files}")
  string(REPLACE ";" "|" kind_list "${ARG_KINDS}")
  string(REPLACE ";" "|" header_list "${ARG_HEADERS}")
  add_custom_command(OUTPUT ${table}
    COMMAND ${CMAKE_COMMAND} -DOUT=${table} -DROOT=${CMAKE_SOURCE_DIR} -DHEADERS=${header_list} -DNAMESPACE=${ARG_NAMESPACE}
            -DKINDS=${kind_list} -DDISTINCT=${ARG_DISTINCT} -DFILES=${file_list} -P ${writer}
    DEPENDS ${files} ${writer} COMMENT "Listing plug-ins: ${ARG_KINDS}" VERBATIM)
  string(REPLACE "${CMAKE_CURRENT_SOURCE_DIR}/" "" sources "${files}")
  target_sources(${ARG_TARGET} PRIVATE ${sources} ${table})
  set_source_files_properties(${sources} ${table} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()
