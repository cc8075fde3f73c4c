# Plug-ins: one file each, found by the build. A folder of plug-ins is listed when the build is made (and again, by
# itself, when a file comes or goes); the table of what its files define is written by cmake/plugin_table.cmake.
set(TIDEPOOL_PLUGINS "" CACHE PATH "Folder of plug-ins of your own outside of this tree: FOLDER/rewards/*.cc, FOLDER/tasks/*.cc, ...")
if(TIDEPOOL_PLUGINS)
  get_filename_component(outside ${TIDEPOOL_PLUGINS} ABSOLUTE BASE_DIR ${CMAKE_SOURCE_DIR})
  set(kinds rewards tasks games control_tasks losses advantages families policies tests)
  file(GLOB folders RELATIVE ${outside} CONFIGURE_DEPENDS ${outside}/*)
  list(REMOVE_ITEM folders ${kinds})
  list(FILTER folders EXCLUDE REGEX "(\\.|~$|^#)")  # a README.md is no folder of plug-ins
  file(GLOB lost RELATIVE ${outside} CONFIGURE_DEPENDS ${outside}/*.cc ${outside}/*.cpp ${outside}/*.cxx)
  if(NOT IS_DIRECTORY ${outside} OR folders OR lost)
    list(JOIN kinds ", " known)
    set(found ${folders} ${lost})
    list(JOIN found ", " found)
    message(FATAL_ERROR "TIDEPOOL_PLUGINS: found ${outside} with [${found}]; expected a folder with some of ${known} in it, and each plug-in in that of its kind")
  endif()
endif()

# Sources in `folder` that no build would compile are an error, so that nobody looks for a plug-in that is not there.
function(tidepool_no_lost_sources folder)
  file(GLOB_RECURSE all RELATIVE ${folder} CONFIGURE_DEPENDS ${folder}/*)
  foreach(file ${all})
    if(file MATCHES "/.*\\.(cc|cpp|cxx|C|cu)$")
      message(FATAL_ERROR "${folder}/${file}: is not compiled, because sub-folders of plug-ins are not looked into; move the file into ${folder}")
    elseif(file MATCHES "^[^.].*\\.(cpp|cxx|C|cu)$")
      message(FATAL_ERROR "${folder}/${file}: is not compiled, because plug-ins are files *.cc; give it that ending")
    endif()
  endforeach()
endfunction()

# tidepool_plugins(TARGET t HEADERS h.h ... NAMESPACE n KINDS Reward ... FOLDERS rewards ... [DISTINCT]): files in FOLDERS are
# sources of `t`, compiled one by one, so that a new one costs its own seconds alone; each defines one plug-in or more with
# TP_PLUGIN(KIND, name) (core/base/plugin.h). HEADERS have the structs and declare the tables, RewardPlugins() and so on.
# DISTINCT: a name stands for one plug-in of all these kinds.
function(tidepool_plugins)
  cmake_parse_arguments(ARG "DISTINCT" "TARGET;NAMESPACE" "HEADERS;KINDS;FOLDERS" ${ARGN})
  set(files)
  foreach(folder ${ARG_FOLDERS})
    set(places ${CMAKE_CURRENT_SOURCE_DIR}/${folder})
    if(TIDEPOOL_PLUGINS)
      get_filename_component(outside ${TIDEPOOL_PLUGINS} ABSOLUTE BASE_DIR ${CMAKE_SOURCE_DIR})
      list(APPEND places ${outside}/${folder})
    endif()
    foreach(place ${places})
      tidepool_no_lost_sources(${place})
      file(GLOB found CONFIGURE_DEPENDS ${place}/*.cc)
      list(APPEND files ${found})
    endforeach()
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
