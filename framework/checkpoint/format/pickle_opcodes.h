#pragma once

#include <cstdint>

namespace anymesh {

// The opcodes of Python's pickle protocols 2 to 5 that checkpoints hold (pickletools.py documents
// them).
enum class Opcode : uint8_t {
  kMark = '(',
  kStop = '.',
  kPop = '0',
  kPopMark = '1',
  kDup = '2',
  kProto = 0x80,
  kFrame = 0x95,
  kMemoize = 0x94,
  kBinPut = 'q',
  kLongBinPut = 'r',
  kBinGet = 'h',
  kLongBinGet = 'j',
  kNone = 'N',
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kLong1 = 0x8A,
  kLong4 = 0x8B,
  kBinFloat = 'G',
  kBinUnicode = 'X',
  kShortBinUnicode = 0x8C,
  kBinUnicode8 = 0x8D,
  kBinString = 'T',
  kShortBinString = 'U',
  kBinBytes = 'B',
  kShortBinBytes = 'C',
  kBinBytes8 = 0x8E,
  kEmptyTuple = ')',
  kTuple = 't',
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kEmptyList = ']',
  kList = 'l',
  kAppend = 'a',
  kAppends = 'e',
  kEmptyDict = '}',
  kDict = 'd',
  kSetItem = 's',
  kSetItems = 'u',
  kEmptySet = 0x8F,
  kAddItems = 0x90,
  kFrozenSet = 0x91,
  kGlobal = 'c',
  kStackGlobal = 0x93,
  kReduce = 'R',
  kNewObj = 0x81,
  kBuild = 'b',
  kBinPersId = 'Q',
};

}  // namespace anymesh
