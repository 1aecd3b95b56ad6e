# Targets for the Debian packages that come without CMake files.
# import_library(TARGET PREFIX NAME PACKAGE HEADER library...): TARGET is the first library that is found.
function(import_library target prefix name package header)
  find_path(${prefix}_INCLUDE_DIR ${header})
  find_library(${prefix}_LIBRARY NAMES ${ARGN})
  if(NOT ${prefix}_INCLUDE_DIR OR NOT ${prefix}_LIBRARY)
    message(FATAL_ERROR "${name} is missing: run tools/setup.sh, or install ${package}")
  endif()
  add_library(${target} UNKNOWN IMPORTED)
  set_target_properties(${target} PROPERTIES
    IMPORTED_LOCATION "${${prefix}_LIBRARY}" INTERFACE_INCLUDE_DIRECTORIES "${${prefix}_INCLUDE_DIR}")
endfunction()

# Linked statically, so that the checkpoint tools run on machines without it.
import_library(libdeflate::libdeflate LIBDEFLATE libdeflate libdeflate-dev libdeflate.h libdeflate.a deflate)
if(ANYMESH_CHECKPOINTS_ONLY)
  return()
endif()
import_library(sentencepiece::sentencepiece SENTENCEPIECE SentencePiece libsentencepiece-dev sentencepiece_processor.h sentencepiece)
import_library(sentencepiece::train SENTENCEPIECE_TRAIN SentencePiece libsentencepiece-dev sentencepiece_trainer.h
               sentencepiece_train)  # only for tests
target_link_libraries(sentencepiece::train INTERFACE sentencepiece::sentencepiece)
import_library(utf8proc::utf8proc UTF8PROC utf8proc libutf8proc-dev utf8proc.h utf8proc)
import_library(pcre2::pcre2 PCRE2 PCRE2 libpcre2-dev pcre2.h pcre2-8)
import_library(zlib::zlib ZLIB zlib zlib1g-dev zlib.h z)
import_library(zstd::zstd ZSTD libzstd libzstd-dev zstd.h zstd)
