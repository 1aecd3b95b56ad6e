#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "framework/format/torch_file/pickle.h"
#include "framework/format/torch_file/pickle_opcodes.h"

namespace anymesh {

// Python's pickle machine: a stack of values, marks in it, and a memo. The stack, the memo and
// other containers share a container while it is filled. All containers are checked at the end.
// This class implements pickle.h: opcodes in pickle_opcodes.cpp, stack and containers in
// pickle_decoder.cpp, classes and tensors in pickle_objects.cpp.
class PickleDecoder {
 public:
  PickleDecoder(std::span<const std::byte> input, const OpenStorage& open_storage, uint64_t memory)
      : input_(input), open_storage_(open_storage), limit_(memory) {}
  ~PickleDecoder() { forget(false); }

  Value run();
  size_t position() const { return position_; }

 private:
  // An opcode's operand: a number, a text, or the two names of a class.
  struct Operand {
    uint64_t number = 0;
    std::string_view text = {}, name = {};
  };
  // An opcode, how its operand is written, and what it does.
  struct Operation {
    Opcode opcode;
    uint8_t form;
    void (*run)(PickleDecoder& d, const Operand& with);  // null: the end
  };
  static const Operation kOperations[];
  // The result of measure() for a value.
  struct Measured {
    uint64_t values = 1;    // the number of values it stands for
    size_t height = 0;      // in levels
    size_t top = SIZE_MAX;  // the least depth of an enclosing container that it holds
  };
  // Every container is recorded here, so that none dies while it holds another. This keeps chains
  // of destructors short.
  struct Container {
    Value value;
    size_t depth = 0;  // where measure() first reached it; 0 = not yet
    bool measured = false;
    Measured found = {};
    const void* node() const { return PickleDecoder::node(value); }
  };
  struct Memo {
    Value value;
    uint32_t recalls = 0;  // still to come
    bool known = false;
  };
  struct Storage {
    std::shared_ptr<const Value::Global> type;
    std::optional<DType> dtype;  // given by its class
    int64_t numel;
    BytesPtr bytes;
  };

  // Memory is counted as malloc allocates it, or more: the bound in torch_file.h leaves no room for
  // rounder figures. The memory of freed containers, memo entries and outgrown buffers is
  // subtracted again; the rest stays counted.
  static constexpr uint64_t block(uint64_t size) {
    if (size >= 1 << 17) return size + 4096;  // pages of its own
    return size == 0 ? 0 : std::max<uint64_t>(24, (size + 23) / 16 * 16 - 8);
  }
  template <typename T>
  static constexpr uint64_t kShared = block(16 + sizeof(T));  // a make_shared, a hash table's node
  static constexpr uint64_t kBucket = 24;  // per entry of a hash table that may be growing
  static uint64_t text_bytes(size_t size) { return size < 16 ? 0 : block(size + 1); }
  void hold(uint64_t bytes);
  static uint64_t container_bytes(const Value& value);
  template <typename T>
  void reserve(std::vector<T>& items, size_t more);

  // Input.
  void check_rest(uint64_t count) const;  // throws unless so many bytes are left
  std::string_view take(uint64_t count);
  uint64_t take_uint(size_t width);
  std::string_view take_line();
  const Operation& take_operation(Operand& operand);

  // Stack and memo.
  void mark();
  void push(Value value);
  Value& top();
  Value pop();
  std::vector<Value> pop_to_mark();
  std::vector<Value> pop_last(size_t count);
  void find_recalled();
  Value recall(uint64_t index);
  void memoize(uint64_t index);

  // Scalars.
  static void check_protocol(uint64_t protocol);
  void push_int(std::string_view two_complement);
  void push_text(std::string_view text);
  Value bytes(std::string_view content);

  // Containers.
  static const void* node(const Value& value);  // identifies a container; else null
  void push_new(Value value);
  void collect();
  void append(std::vector<Value> items);
  void push_dict();
  void set_items(std::vector<Value> flat);
  void check_tree(Value& root);
  Measured measure(Value& value, size_t depth);
  Value stand_in(size_t levels);
  void forget(bool keep_reached);

  // Classes.
  bool is_storage(const Value& value) const;
  Value::Object& object_of(const Value& value, const char* expected) const;
  Value object(const Value& type, bool call, std::vector<Value> args) const;
  Value global(std::string_view module, std::string_view name);
  const std::vector<Value>& arguments(const Value& tuple);
  const std::vector<Value>& copyable(const Value& sequence);
  void push_stack_global();
  void push_call(const char* module, const char* name, std::vector<Value> args);
  void push_frozen_set();
  Value pop_call(bool call);
  Value reduce(const Value& function, const std::vector<Value>& args);
  void build();
  Value storage(const Value& id);
  void expose_storage(const Value& storage);
  std::optional<TensorRecord> tensor(const std::vector<Value>& args, bool with_dtype);
  BytesPtr view(const Storage& storage, DType dtype, int64_t offset, int64_t numel);
  bool expands_too_much(const Storage& storage, DType dtype, int64_t numel);

  std::span<const std::byte> input_;
  const OpenStorage& open_storage_;
  const uint64_t limit_;
  // The types of the objects that stand for storages on the stack, for containers inside themselves
  // and for calls.
  const Value storage_type_ = Value::Global{"", "storage"}, itself_type_ = kItself,
              call_type_ = kCall;
  uint64_t held_ = 0;
  size_t position_ = 0;
  size_t deepest_ = 0;  // the largest size of the stack so far
  std::vector<Value> stack_;
  std::vector<size_t> marks_;
  std::unordered_map<uint64_t, Memo> memo_;  // only of values that are recalled
  uint64_t memoized_ = 0;
  std::unordered_map<std::string, Storage> storages_;
  std::map<std::tuple<const ByteSource*, uint64_t, uint64_t>, BytesPtr>
      views_;                  // equal views are the same memory
  uint64_t expanded_ = 0;      // bytes of views that are larger than their storages
  std::vector<Value> itself_;  // the stand-ins for containers inside themselves
  bool ambiguous_ = false;     // whether one of those is reached in several ways
  std::deque<Container> containers_;
  std::vector<Container*> by_node_;  // the same, sorted in the end
};

}  // namespace anymesh
