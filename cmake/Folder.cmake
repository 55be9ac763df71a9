# weightcast_folder(NAME [COLD [BUT file...] | SMALL file...] [DEPENDS folder...] [LIBRARIES target...])
#
# One static library `weightcast_<name>` from every .cc below the current folder that has no
# CMakeLists.txt of its own. DEPENDS are folders of the house (public: their headers appear in
# ours); LIBRARIES are third-party targets and stay private, so that heavy headers do not spread.
# COLD: nothing in the folder runs for each transfer, piece or message of a stream, so the release build makes it
# small rather than fast (weightcast_cold). BUT: these files are made fast all the same, each compiled alone.
# SMALL: these alone are made small.
function(weightcast_folder name)
  cmake_parse_arguments(ARG "COLD" "" "BUT;SMALL;DEPENDS;LIBRARIES" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS *.cc)
  file(GLOB headers CONFIGURE_DEPENDS *.h)
  set(target weightcast_${name})
  if(sources)
    add_library(${target} STATIC ${sources})
    set(scope PUBLIC)
  else()
    add_library(${target} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_sources(${target} ${scope} FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR}/src FILES ${headers})
  set_target_properties(${target} PROPERTIES VERIFY_INTERFACE_HEADER_SETS ON)
  target_include_directories(${target} ${scope} ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(${target} ${scope} weightcast_api)
  foreach(folder IN LISTS ARG_DEPENDS)
    target_link_libraries(${target} ${scope} weightcast_${folder})
  endforeach()
  if(sources)
    target_link_libraries(${target} PRIVATE weightcast_flags ${ARG_LIBRARIES})
    if(ARG_COLD)
      weightcast_cold(${target})
    endif()
    foreach(file IN LISTS ARG_BUT ARG_SMALL)
      if(NOT EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/${file})
        message(FATAL_ERROR "${target}: BUT or SMALL names ${file}, which is not there")
      endif()
    endforeach()
    set_source_files_properties(${ARG_BUT} PROPERTIES COMPILE_OPTIONS $<$<CONFIG:RelWithDebInfo,Release>:-O2>)
    set_source_files_properties(${ARG_SMALL} PROPERTIES COMPILE_OPTIONS $<$<CONFIG:RelWithDebInfo,Release>:-Os>)
  endif()
endfunction()

# Less than half the machine code, and a third less time for the compiler. Builds for debuggers have no use for it.
function(weightcast_cold target)
  target_compile_options(${target} PRIVATE $<$<CONFIG:RelWithDebInfo,Release>:-Os>)
endfunction()
