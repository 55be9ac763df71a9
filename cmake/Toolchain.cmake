set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
  # It refuses files with a precompiled header unless told that their macros and times are of no matter.
  # The builds of the binary and of the wheels compile the same files with the same options, and a second clone
  # those of the first: once is enough. Paths in debug information begin at the root of the source.
  list(PREPEND CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
    CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1)
  if(NOT CMAKE_BUILD_TYPE STREQUAL "RelWithDebInfo")
    add_compile_options(-fdebug-prefix-map=${PROJECT_SOURCE_DIR}=.)
  endif()
endif()

# Half of the compiler's time went into reading the same headers for each file: a target's files are compiled some at
# a time. So two files of a folder cannot define the same name for themselves. -DCMAKE_UNITY_BUILD=OFF compiles each
# alone: for clang-tidy and clangd, and for those who change a file again and again.
if(NOT DEFINED CMAKE_UNITY_BUILD)
  set(CMAKE_UNITY_BUILD ON)
endif()
if(NOT DEFINED CMAKE_UNITY_BUILD_BATCH_SIZE)
  set(CMAKE_UNITY_BUILD_BATCH_SIZE 24)
endif()

# Two hundred test programs: linking them took a tenth of the build. What is shipped is linked by the system's own.
find_program(MOLD mold)
if(MOLD AND WEIGHTCAST_TESTS)
  add_link_options(-fuse-ld=mold)
endif()

add_library(weightcast_flags INTERFACE)
target_compile_options(weightcast_flags INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Wnon-virtual-dtor
  -Woverloaded-virtual
  # gcc's optimiser sees ghosts in release builds, and a user's newer compiler more: only developers' builds insist.
  $<$<BOOL:${WEIGHTCAST_WERROR}>:-Werror>
  # gcc 12 sees uninitialised members where std::variant moves, at -O2 only; clang-tidy, which reads the
  # same flags, does not know the warning.
  $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized;-Wno-unknown-warning-option>
  # libstdc++'s own stable_sort uses what clang warns of.
  $<$<CXX_COMPILER_ID:Clang>:-Wno-deprecated-declarations>)
target_compile_definitions(weightcast_flags INTERFACE _GNU_SOURCE)
# So that the linker can leave out what nothing uses (--gc-sections). Builds for debuggers link faster without.
target_compile_options(weightcast_flags INTERFACE
  $<$<CONFIG:RelWithDebInfo,Release>:-ffunction-sections;-fdata-sections>)

if(WEIGHTCAST_SANITIZE)
  # Not vptr: it reads /proc, for which a process at its limit of descriptors has none left.
  add_compile_options(-fsanitize=${WEIGHTCAST_SANITIZE} -fno-sanitize=vptr -fno-omit-frame-pointer
    -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${WEIGHTCAST_SANITIZE})
  # gcc 12, instrumented, sees the move of a short std::string beyond its bounds.
  target_compile_options(weightcast_flags INTERFACE
    $<$<CXX_COMPILER_ID:GNU>:-Wno-array-bounds;-Wno-stringop-overread;-Wno-tsan>)
  # What gcc defines by itself, and tests ask for.
  if(WEIGHTCAST_SANITIZE MATCHES thread)
    add_compile_definitions($<$<CXX_COMPILER_ID:Clang>:__SANITIZE_THREAD__=1>)
    # Some tests count allocations by an operator new of their own; clang's runtime defines one as well.
    add_link_options($<$<CXX_COMPILER_ID:Clang>:-Wl,--allow-multiple-definition>)
  else()
    add_compile_definitions($<$<CXX_COMPILER_ID:Clang>:__SANITIZE_ADDRESS__=1>)
  endif()
endif()

if(WEIGHTCAST_FUZZ)
  add_compile_options(-fsanitize=address,undefined,fuzzer-no-link -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=address,undefined)
endif()
