# weightcast_folder(NAME [COLD [BUT file...] | SMALL file...] [DEPENDS folder...] [LIBRARIES target...])
#
# One static library `weightcast_<name>` from every .cc below the current folder that has no
# CMakeLists.txt of its own. DEPENDS are folders of the house (public: their headers appear in
# ours); LIBRARIES are third-party targets and stay private, so that heavy headers do not spread.
# COLD: nothing in the folder runs for each transfer, piece or message of a stream, so the release build makes it
# small rather than fast (weightcast_cold). BUT: these files are made fast all the same.
# SMALL: these alone are made small. Either list becomes objects of their own, compiled together.
function(weightcast_folder name)
  cmake_parse_arguments(ARG "COLD" "" "BUT;SMALL;DEPENDS;LIBRARIES" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS *.cc)
  file(GLOB headers CONFIGURE_DEPENDS *.h)
  set(apart ${ARG_BUT} ${ARG_SMALL})
  list(TRANSFORM apart PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  list(REMOVE_ITEM sources ${apart})
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
  list(TRANSFORM ARG_DEPENDS PREPEND weightcast_)
  target_link_libraries(${target} ${scope} ${ARG_DEPENDS})
  if(sources)
    target_link_libraries(${target} PRIVATE weightcast_flags ${ARG_LIBRARIES})
  endif()
  if(apart)
    add_library(${target}_apart OBJECT ${apart})
    target_include_directories(${target}_apart PRIVATE ${PROJECT_SOURCE_DIR}/src)
    target_link_libraries(${target}_apart PRIVATE weightcast_api ${ARG_DEPENDS} weightcast_flags ${ARG_LIBRARIES})
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:${target}_apart>)
  endif()
  if(ARG_COLD)
    weightcast_cold(${target})
  elseif(ARG_SMALL)
    weightcast_cold(${target}_apart)
  endif()
endfunction()

# Less than half the machine code, and a third less time for the compiler. Builds for debuggers have no use for it.
function(weightcast_cold target)
  target_compile_options(${target} PRIVATE $<$<CONFIG:RelWithDebInfo,Release>:-Os>)
endfunction()
