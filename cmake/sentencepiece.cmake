# sentencepiece::sentencepiece, which the Debian package provides without a CMake file.
find_path(SENTENCEPIECE_INCLUDE_DIR sentencepiece_processor.h)
find_library(SENTENCEPIECE_LIBRARY sentencepiece)
find_library(SENTENCEPIECE_TRAIN_LIBRARY sentencepiece_train)
if(NOT SENTENCEPIECE_INCLUDE_DIR OR NOT SENTENCEPIECE_LIBRARY OR NOT SENTENCEPIECE_TRAIN_LIBRARY)
  message(FATAL_ERROR "SentencePiece is missing: run tools/setup.sh, or install libsentencepiece-dev")
endif()
add_library(sentencepiece::sentencepiece UNKNOWN IMPORTED)
set_target_properties(sentencepiece::sentencepiece PROPERTIES
  IMPORTED_LOCATION "${SENTENCEPIECE_LIBRARY}" INTERFACE_INCLUDE_DIRECTORIES "${SENTENCEPIECE_INCLUDE_DIR}")
# For tests alone.
add_library(sentencepiece::train UNKNOWN IMPORTED)
set_target_properties(sentencepiece::train PROPERTIES
  IMPORTED_LOCATION "${SENTENCEPIECE_TRAIN_LIBRARY}" INTERFACE_LINK_LIBRARIES sentencepiece::sentencepiece)
