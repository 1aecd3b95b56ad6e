# sentencepiece::sentencepiece and utf8proc::utf8proc. The Debian packages come without CMake files for them.
find_path(SENTENCEPIECE_INCLUDE_DIR sentencepiece_processor.h)
find_library(SENTENCEPIECE_LIBRARY sentencepiece)
find_library(SENTENCEPIECE_TRAIN_LIBRARY sentencepiece_train)
find_path(UTF8PROC_INCLUDE_DIR utf8proc.h)
find_library(UTF8PROC_LIBRARY utf8proc)
if(NOT SENTENCEPIECE_INCLUDE_DIR OR NOT SENTENCEPIECE_LIBRARY OR NOT SENTENCEPIECE_TRAIN_LIBRARY)
  message(FATAL_ERROR "SentencePiece is missing: run tools/setup.sh, or install libsentencepiece-dev")
endif()
if(NOT UTF8PROC_INCLUDE_DIR OR NOT UTF8PROC_LIBRARY)
  message(FATAL_ERROR "utf8proc is missing: run tools/setup.sh, or install libutf8proc-dev")
endif()
add_library(sentencepiece::sentencepiece UNKNOWN IMPORTED)
set_target_properties(sentencepiece::sentencepiece PROPERTIES
  IMPORTED_LOCATION "${SENTENCEPIECE_LIBRARY}" INTERFACE_INCLUDE_DIRECTORIES "${SENTENCEPIECE_INCLUDE_DIR}")
# Only for tests.
add_library(sentencepiece::train UNKNOWN IMPORTED)
set_target_properties(sentencepiece::train PROPERTIES
  IMPORTED_LOCATION "${SENTENCEPIECE_TRAIN_LIBRARY}" INTERFACE_LINK_LIBRARIES sentencepiece::sentencepiece)
add_library(utf8proc::utf8proc UNKNOWN IMPORTED)
set_target_properties(utf8proc::utf8proc PROPERTIES
  IMPORTED_LOCATION "${UTF8PROC_LIBRARY}" INTERFACE_INCLUDE_DIRECTORIES "${UTF8PROC_INCLUDE_DIR}")
