# The language, the build type, ccache and warnings, for this project and for the Python package.
set(warnings_are_errors OFF)
if(DEFINED ENV{ANYMESH_WERROR})  # as .ci/run sets it: other compilers may warn of more
  set(warnings_are_errors $ENV{ANYMESH_WERROR})
endif()
option(ANYMESH_WERROR "Warnings are errors" ${warnings_are_errors})

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
endif()

# Designated initialisers leave the other fields at their defaults on purpose. g++ 12's -Wrestrict is wrong about strings.
add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wno-missing-field-initializers>"
                    "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-restrict;-Wno-dangling-reference>")
# Clang 18 and later mangle templates with constraints in a new way, which g++'s LibTorch does not know.
add_compile_options(
    $<$<AND:$<COMPILE_LANG_AND_ID:CXX,Clang>,$<VERSION_GREATER_EQUAL:$<CXX_COMPILER_VERSION>,18>>:-fclang-abi-compat=17>)
if(ANYMESH_WERROR)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
