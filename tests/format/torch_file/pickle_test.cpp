#include "framework/format/torch_file/pickle.h"

#include <cmath>
#include <limits>

#include "tests/support/fixtures.h"

namespace anymesh {
namespace {

BytesPtr no_storage(const std::string& key, DType, int64_t) {
  throw DamagedFile("no storage " + key);
}
std::string no_tensor(const TensorRecord&) { throw DamagedFile("no tensors"); }

Value decode(const std::string& text, const OpenStorage& open = no_storage) {
  return decode_pickle(std::as_bytes(std::span(text)), open, "test");
}

Value round_trip(const Value& value) { return decode(encode_pickle(value, no_tensor)); }

// Round-trips a value with its tensors.
Value copy_of(const Value& value) {
  std::vector<TensorRecord> stored;
  const std::string text = encode_pickle(value, [&](const TensorRecord& tensor) {
    stored.push_back(tensor);
    return std::to_string(stored.size() - 1);
  });
  return decode(text, [&](const std::string& key, DType, int64_t) {
    return stored.at(std::stoul(key)).bytes;
  });
}

// Returns storage "7" of a class, as a pickle has it.
std::string storage(const std::string& type, const std::string& numel) {
  return "(U\x07storagec" + type + "\nU\x01" + "7U\x03" + "cpu" + numel + "tQ";
}

std::string bytes(std::initializer_list<int> codes) { return {codes.begin(), codes.end()}; }

TEST(Pickle, ScalarsRoundTrip) {
  for (const int64_t v :
       {int64_t{0}, int64_t{255}, int64_t{256}, int64_t{65535}, int64_t{65536}, int64_t{-1},
        int64_t{-129}, int64_t{INT32_MAX}, int64_t{INT32_MAX} + 1, int64_t{INT32_MIN},
        int64_t{INT32_MIN} - 1, int64_t{1} << 40, -(int64_t{1} << 39), INT64_MAX, INT64_MIN}) {
    EXPECT_EQ(round_trip(v), Value(v)) << v;
  }
  for (const double v : {0.0, -0.5, 1e300, std::numeric_limits<double>::infinity()})
    EXPECT_EQ(round_trip(v), Value(v));
  EXPECT_TRUE(std::isnan(round_trip(std::nan("")).as_double()));
  EXPECT_EQ(round_trip({}), Value());
  EXPECT_EQ(round_trip(true), Value(true));
  EXPECT_EQ(round_trip("Gr\xC3\xB6\xC3\x9F"
                       "e"),
            Value("Gr\xC3\xB6\xC3\x9F"
                  "e"));
  EXPECT_EQ(round_trip(Value::bytes(std::string("\0\x7F\x80\xFF", 4))).as_bytes(),
            std::string("\0\x7F\x80\xFF", 4));
  const std::string big(16, '\x5A');  // 128 bits, as in the state of NumPy's PCG64
  EXPECT_EQ(round_trip(Value::big_int(big)), Value::big_int(big));
}

TEST(Pickle, ContainersRoundTrip) {
  const std::vector<Value> items = {1, "two", 3.0, {}};
  for (size_t n = 0; n <= items.size(); ++n) {
    const std::vector<Value> some(items.begin(), items.begin() + static_cast<ptrdiff_t>(n));
    EXPECT_EQ(round_trip(Value::tuple(some)), Value::tuple(some));
    EXPECT_EQ(round_trip(Value::list(some)), Value::list(some));
    EXPECT_EQ(round_trip(Value::set(some)), Value::set(some));
  }
  EXPECT_EQ(round_trip(Value::size(Shape{5, 0})), Value::size(Shape{5, 0}));
  const Value nested =
      Value::ordered_dict({{"a", Value::dict({{0, Value::list({Value::tuple({})})}})}, {"b", 2}});
  EXPECT_EQ(round_trip(nested), nested);
  EXPECT_EQ(round_trip(Value::dict()), Value::dict());
}

TEST(Pickle, LongContainersAreWrittenInBatches) {
  Value list = Value::list();
  std::vector<Value::Entry> entries;
  for (int i = 0; i < 2500; ++i) {
    list.push_back(i);
    entries.emplace_back(std::to_string(i), i);
  }
  EXPECT_EQ(round_trip(list), list);
  EXPECT_EQ(round_trip(Value::dict(entries)), Value::dict(entries));
  // Batches have 1000 items, as in Python's pickler. Two pairs of APPENDS and MARK come between the
  // three batches.
  const std::string text = encode_pickle(Value::list(std::vector<Value>(2500)), no_tensor);
  EXPECT_EQ(text, "\x80\x02](" + std::string(1000, 'N') + "e(" + std::string(1000, 'N') + "e(" +
                      std::string(500, 'N') + "e.");
}

TEST(Pickle, ObjectsRoundTrip) {
  Value::Object custom;
  custom.type = std::make_shared<Value::Global>(Value::Global{"collections", "defaultdict"});
  custom.call = true;
  custom.args = {Value::Global{"__builtin__", "list"}};
  custom.entries = {{"k", Value::list({1})}};
  Value::Object list_like;
  list_like.type = std::make_shared<Value::Global>(Value::Global{"m", "Stack"});
  list_like.items = {1, 2};
  list_like.state = std::make_shared<Value>(Value::dict({{"top", 2}}));
  for (const Value& value :
       {fragment_address(30, 5), zero_stage_enum(1), loss_scaler(1.0),
        argparse_namespace({{"lr", 1e-3}}),
        dynamic_loss_scaler({{"cur_scale", 65536.0}, {"dtype", Value::dtype(DType::kFloat16)}}),
        Value(custom), Value(list_like), Value::dtype(DType::kFloat32)}) {
    EXPECT_EQ(round_trip(value), value) << value.found();
  }
}

// Reads bytes that Python's pickle.dumps wrote.
TEST(Pickle, ReadsProtocol4) {
  // {'a': [1, 2], 'b': {3}, 'c': b'x'} with FRAME, MEMOIZE, SHORT_BINUNICODE, EMPTY_SET and
  // ADDITEMS
  const std::string text(
      "\x80\x04\x95\x24\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\x01"
      "a\x94]\x94(K\x01K\x02"
      "e\x8c\x01"
      "b\x94\x8f\x94(K\x03\x90\x8c\x01"
      "c\x94"
      "C\x01x\x94u.",
      47);
  EXPECT_EQ(
      decode(text),
      Value::dict({{"a", Value::list({1, 2})}, {"b", Value::set({3})}, {"c", Value::bytes("x")}}));
}

TEST(Pickle, MemoSharesContainersThatAreFilledLater) {
  // l = []; [l, l] with l appended to after it was memoized
  const Value value = decode(
      "\x80\x02](]q\x01K\x07"
      "ah\x01"
      "e.");
  EXPECT_EQ(value, Value::list({Value::list({7}), Value::list({7})}));
}

TEST(Pickle, TensorsAreViewsOfStorages) {
  const auto storage = bytes_of(std::vector<float>{0, 1, 2, 3, 4, 5});
  const auto open = [&](const std::string& key, DType dtype, int64_t count) {
    EXPECT_EQ(key, "7");
    EXPECT_EQ(dtype, DType::kFloat32);
    EXPECT_EQ(count, 6);
    return storage;
  };
  const auto tensor = [&](const std::string& offset, const std::string& sizes,
                          const std::string& strides) {
    const std::string storage_id =
        "(U\x07storagectorch\nFloatStorage\nU\x01"
        "7U\x03"
        "cpuK\x06tQ";
    return "\x80\x02"
           "ctorch._utils\n_rebuild_tensor_v2\n(" +
           storage_id + offset + sizes + strides +
           "\x89"
           "ccollections\nOrderedDict\n)RtR.";
  };
  const Value view = decode(tensor("K\x01", "K\x02\x85", "K\x01\x85"), open);
  EXPECT_EQ(floats(view.as_tensor()), (std::vector<float>{1, 2}));
  const Value transposed =
      decode(tensor(bytes({'K', 0}), "K\x03K\x02\x86", "K\x01K\x03\x86"), open);
  EXPECT_EQ(floats(transposed.as_tensor()), (std::vector<float>{0, 3, 1, 4, 2, 5}));
  EXPECT_THROW(decode(tensor("K\x05", "K\x02\x85", "K\x01\x85"), open),
               DamagedFile);  // beyond the end
  EXPECT_THROW(decode(tensor("J\xFF\xFF\xFF\xFF", "K\x02\x85", "K\x01\x85"), open), DamagedFile);
  EXPECT_THROW(decode(tensor("K\x01", "K\x02\x85", "K\x01K\x01\x86"), open), DamagedFile);
  EXPECT_THROW(decode(tensor("K\x01", "J\xFF\xFF\xFF\xFF\x85", "K\x01\x85"), open), DamagedFile);
  EXPECT_THROW(
      decode(tensor("K\x01", "\x8A\x08\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x7F\x85", "K\x02\x85"), open),
      DamagedFile);
}

TEST(Pickle, KeepsTensorsAndStoragesOfKindsThatItDoesNotKnow) {
  const auto six = bytes_of(std::vector<uint8_t>{0, 1, 2, 3, 4, 5});
  const auto read = [&](const std::string& body) {
    return decode("\x80\x02" + body + ".", [&](const std::string& key, DType, int64_t) {
      EXPECT_EQ(key, "7");
      return six;
    });
  };
  const std::string shape = bytes({'K', 0}) + "K\x03\x85K\x01\x85", hooks = "}",
                    untyped = storage("torch.storage\nUntypedStorage", "K\x06");
  const Value bare = read(untyped), unknown = read(storage("torch\nQUInt4x2Storage", "K\x0B")),
              quantized = read("ctorch._utils\n_rebuild_qtensor\n(" +
                               storage("torch\nQInt8Storage", "K\x06") + shape + "K\x05\x89" +
                               hooks + "tR"),
              packed = read("ctorch._utils\n_rebuild_tensor_v3\n(" + untyped + shape + "\x89" +
                            hooks + "ctorch\nuint4\ntR");
  for (const Value& value : {bare, unknown, quantized, packed}) {
    EXPECT_TRUE(value.is_object());
    EXPECT_EQ(copy_of(value), value) << value.found();
    EXPECT_EQ(copy_of(Value::list({value, 1})).at(0), value);
  }
  EXPECT_NE(bare, unknown);
  EXPECT_EQ(unknown.found(), "object of class torch.QUInt4x2Storage");
  EXPECT_EQ(read_bytes(bare.as_object().args.at(0).as_tensor()), read_bytes(*six));
  EXPECT_EQ(message_of([&] {
              Value::dict({{"w", quantized}}).named("f.pt").at("w").as_tensor();
            }),
            "f.pt: ['w']: expected a tensor, found tensor that is not read, of "
            "torch._utils._rebuild_qtensor");

  const Value uint16 = read("ctorch._utils\n_rebuild_tensor_v3\n(" + untyped + shape + "\x89" +
                            hooks + "ctorch\nuint16\ntR");
  EXPECT_EQ(uint16.as_tensor().dtype, DType::kUInt16);
  EXPECT_EQ(uint16.as_tensor().shape, Shape{3});
  for (const DType dtype : {DType::kFloat8E4M3fn, DType::kFloat8E5M2fnuz, DType::kComplex64,
                            DType::kComplex128, DType::kComplex32, DType::kUInt64}) {
    const TensorRecord tensor{
        dtype, {2, 1}, true, bytes_of(std::vector<uint8_t>(2 * element_size(dtype), 7))};
    EXPECT_EQ(copy_of(tensor), Value(tensor)) << dtype_name(dtype);
  }
}

// A tensor of a few bytes that stands for a large one is kept in its small form.
TEST(Pickle, ExpandedTensorsAreBoundedTogether) {
  const auto one = bytes_of(std::vector<float>{1});
  const auto expanded = [](const std::string& size) {
    return "ctorch._utils\n_rebuild_tensor_v2\n(" + storage("torch\nFloatStorage", "K\x01") +
           bytes({'K', 0}) + "J" + size + "\x85" + bytes({'K', 0}) + "\x85\x89}tR";
  };
  const std::string most = bytes({0, 0, 0, 8}), half = bytes({0, 0, 0, 4}),  // of 2^28 elements
      more = bytes({1, 0, 0, 8}), whole = bytes({0, 0, 0, 16});
  const auto kinds = [&](std::initializer_list<std::string> sizes) {
    std::string text = "\x80\x02(", found;
    for (const std::string& size : sizes) text += expanded(size);
    const Value value =
        decode(text + "t.", [&](const std::string&, DType, int64_t) { return one; });
    EXPECT_EQ(copy_of(value).size(), sizes.size());
    for (const Value& item : value.items()) found += item.is_tensor() ? 't' : 'o';
    return found;
  };
  EXPECT_EQ(kinds({whole}), "t");
  EXPECT_EQ(kinds({bytes({1, 0, 0, 16})}), "o");
  EXPECT_EQ(kinds({most, half, half}), "ttt");
  EXPECT_EQ(kinds({most, more, half}), "tot");
}

TEST(Pickle, ValuesThatContainThemselvesEnd) {
  const Value list = decode(
                  "\x80\x02]q\x01h\x01"
                  "a."),
              dict = decode("\x80\x02}q\x01U\x02meh\x01s."),
              object = decode(
                  "\x80\x02"
                  "cm\nNode\n)\x81q\x01}(U\x02meh\x01U\x01k]q\x02h\x01"
                  "aub."),
              inner = decode(
                  "\x80\x02]]q\x01(K\x05h\x01"
                  "ea."),
              tuple = decode(
                  "\x80\x02]q\x01h\x01\x85q\x02"
                  "a0h\x02.");
  for (const Value& value : {list, dict, object, inner}) {
    EXPECT_EQ(round_trip(value), value) << value.found();
    EXPECT_EQ(map_tensors(value, [](const TensorRecord& t) { return t; }), value);
  }
  EXPECT_EQ(encode_pickle(dict, no_tensor), "\x80\x02}q" + bytes({0}) + "(X" + bytes({2, 0, 0, 0}) +
                                                "meq\x01h" + bytes({0}) + "u.");
  EXPECT_EQ(dict.at("me").found(), "a container that it is in");
  EXPECT_EQ(inner.at(0).at(0), Value(5));
  EXPECT_NE(list, Value::list({list}));
  // The container that it names depends on how it was reached. A tuple cannot be recalled
  // unfinished.
  const Value shared = decode(
      "\x80\x02]q\x01]q\x02h\x01"
      "aah\x02\x86.");
  EXPECT_EQ(shared.at(1).at(0).found(), "a container that it is in");
  for (const Value& value : {shared, list.at(0), tuple})
    EXPECT_REFUSES(encode_pickle(value, no_tensor), "contains itself");
}

TEST(Pickle, CallsAndClassesOfAllKindsRoundTrip) {
  const std::string inner = "c__builtin__\ngetattr\ncm\nOuter\nU\x05Inner\x86R";
  for (const std::string& body : {inner + ")\x81}U\x01xK\x01sb", inner + "K\x01\x85R",
                                  std::string("cm\nC\nK\x01\x85}U\x01kK\x02s\x92"),
                                  "\x96" + bytes({2, 0, 0, 0, 0, 0, 0, 0}) + "a\xFF"}) {
    const Value value = decode("\x80\x05" + body + ".");
    EXPECT_TRUE(value.is_object());
    EXPECT_EQ(round_trip(value), value) << body;
  }
  EXPECT_EQ(decode("\x80\x02" + inner + ")\x81}U\x01xK\x01sb.").at("x"), Value(1));
  // Protocol 4 has such names, and Python reads them so in protocol 2.
  EXPECT_EQ(encode_pickle(Value::Global{"m", "Outer.Inner"}, no_tensor),
            encode_pickle(decode("\x80\x02" + inner + "."), no_tensor));
  const std::string recursive = encode_pickle(decode("\x80\x04]q\x01(h\x01"
                                                     "cm\nA.B.C\ncm\nD\nK\x07"
                                                     "e."),
                                              no_tensor);
  EXPECT_EQ(encode_pickle(decode(recursive), no_tensor), recursive);
}

TEST(HostilePickle, EveryTruncationIsRefused) {
  const Value value = Value::dict({{"a", Value::list({1, 300, 70000, int64_t{1} << 40, 2.5})},
                                   {"n", argparse_namespace({{"t", Value::tuple({1, 2, 3, 4})}})},
                                   {"s", Value::size(Shape{1, 2})},
                                   {"b", Value::bytes("xyz")}});
  const std::string text = encode_pickle(value, no_tensor);
  EXPECT_EQ(decode(text), value);
  for (size_t size = 0; size < text.size(); ++size) {
    EXPECT_REFUSES(decode(text.substr(0, size)), "test: pickle at byte") << size;
  }
}

// No byte may crash the decoder. A pickle that still decodes must still encode.
TEST(HostilePickle, EveryChangedByteIsHandled) {
  const Value value = Value::dict(
      {{"a", Value::list({1, "x", 2.5})}, {"o", fragment_address(3, 4)}, {"s", Value::set({1})}});
  const std::string text = encode_pickle(value, no_tensor);
  int refused = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    for (int byte = 0; byte < 256; ++byte) {
      std::string changed = text;
      changed[i] = static_cast<char>(byte);
      try {
        const Value decoded = decode(changed);
        EXPECT_EQ(round_trip(decoded).kind(), decoded.kind());
      } catch (const DamagedFile&) {
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 10000);
}

struct Hostile {
  const char* what;
  std::string text;
  const char* message;
};

// hostile_bombs_test.cpp has those that would take too much memory.
TEST(HostilePickle, IsRefusedWithItsReason) {
  std::string deep = "\x80\x02";
  for (int i = 0; i < 30000; ++i) deep += ']';
  for (int i = 0; i < 29999; ++i) deep += 'a';
  for (const Hostile& hostile : std::initializer_list<Hostile>{
           {"empty", "", "wants 1 bytes"},
           {"old protocol", "\x80\x01N.", "is of protocol 1, expected 2 to 5"},
           {"two values", "\x80\x02NN.", "leaves 2 values"},
           {"nothing", "\x80\x02.", "leaves 0 values"},
           {"empty stack",
            "\x80\x02"
            "0.",
            "empty stack"},
           {"below a mark", "\x80\x02N(0.", "empty stack"},
           {"no mark", "\x80\x02t.", "no mark"},
           {"append to int",
            "\x80\x02K\x01K\x02"
            "a.",
            "a list to append to"},
           {"odd items", "\x80\x02}(K\x01u.", "a key without a value"},
           {"call of a value", "\x80\x02K\x01)R.", "expected the name of a class"},
           {"args of a value",
            "\x80\x02"
            "cm\nf\nK\x01R.",
            "expected a tuple"},
           {"persistent id", "\x80\x02K\x01Q.", "persistent id of a torch storage"},
           {"unknown opcode", "\x80\x02\xFF.", "opcode 255"},
           {"deep and dropped", deep + "0N.", ""},
           {"two equal keys", "\x80\x02}(U\x01kNU\x01kNu.", "two keys 'k'"},
           {"no module",
            "\x80\x02"
            "c\nstorage\n.",
            "without module"},
           {"class of a storage", "\x80\x02" + storage("os\nsystem", "K\x01") + ".",
            "expected the class of a torch storage, found os.system"}}) {
    const std::string message = message_of([&] { decode(hostile.text); });
    EXPECT_EQ(message.empty(), *hostile.message == '\0') << hostile.what << ": " << message;
    EXPECT_THAT(message, HasSubstr(hostile.message)) << hostile.what;
  }
}

}  // namespace
}  // namespace anymesh
