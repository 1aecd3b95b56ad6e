#include "tests/pretend/device.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>
#include <ATen/NativeFunctions.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "tests/pretend/memory.h"
#include "tests/pretend/order.h"

namespace anymesh::pretend {
namespace {

constexpr auto kType = c10::DeviceType::PrivateUse1;
const c10::Device kDevice(kType, 0);

// ---- Memory.

thread_local size_t current_stream = 0;

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    if (size == 0) return {nullptr, nullptr, &release, kDevice};
    void* at = pages().allocate(size);
    order().allocated(at, size, current_stream);
    c10::reportMemoryUsageToProfiler(at, static_cast<int64_t>(size), 0, 0, kDevice);
    return {at, at, &release, kDevice};
  }
  static void release(void* at) {
    if (!at) return;
    order().freed(at);
    c10::reportMemoryUsageToProfiler(at, -pages().free(at), 0, 0, kDevice);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t size) const override {
    pages().open(to), pages().open(from);
    std::memcpy(to, from, size);
    pages().close(to), pages().close(from);
  }
};

void host_waits(const Order::Clock& event) {
  order().host_waits(event);
  pinned().settle();
}

Memory memory;

// ---- Streams and events.

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device) const override { return kDevice; }
  c10::Device getDevice() const override { return kDevice; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }

  static c10::Stream stream(size_t id) {
    return c10::Stream(c10::Stream::UNSAFE, kDevice, static_cast<c10::StreamId>(id));
  }
  c10::Stream getStream(c10::Device) const override { return stream(current_stream); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(0); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override {
    static std::atomic<size_t> next{0};
    return stream(1 + next++ % (Order::kStreams - 1));
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return getStreamFromGlobalPool(device, false);
  }
  c10::Stream exchangeStream(c10::Stream s) const override {
    return stream(std::exchange(current_stream, static_cast<size_t>(s.id())));
  }

  void record(void** event, const c10::Stream& s, c10::DeviceIndex, c10::EventFlag) const override {
    if (!*event) *event = new Order::Clock;
    *static_cast<Order::Clock*>(*event) = order().of_stream(static_cast<size_t>(s.id()));
  }
  void block(void* event, const c10::Stream& s) const override {
    if (event)
      order().stream_waits(static_cast<size_t>(s.id()), *static_cast<Order::Clock*>(event));
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<Order::Clock*>(event);
  }
  // The device is as slow as can be: work is done when the host has waited for it.
  bool queryEvent(void* event) const override {
    return !event || order().host_knows(*static_cast<Order::Clock*>(event));
  }
  void synchronizeEvent(void* event) const override {
    if (event) host_waits(*static_cast<Order::Clock*>(event));
  }
  bool queryStream(const c10::Stream& s) const override {
    return order().host_knows(order().of_stream(static_cast<size_t>(s.id())));
  }
  void synchronizeStream(const c10::Stream& s) const override {
    host_waits(order().of_stream(static_cast<size_t>(s.id())));
  }
  void synchronizeDevice(c10::DeviceIndex) const override {
    order().host_waits_for_all();
    pinned().settle();
  }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  bool isPinnedPtr(const void* at) const override { return pinned().holds(at); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned(); }
  at::Device getDeviceFromPtr(void*) const override { return kDevice; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return at::detail::getDefaultCPUGenerator();
  }
};

// ---- Operators.

thread_local bool inside = false;  // an operator's own copies follow no rules

// Calls work(begin, size) for the bytes that a strided tensor spans.
template <class Work>
void span_of(const at::Tensor& t, const Work& work) {
  if (!t.defined() || t.numel() == 0 || !t.device().is_privateuseone()) return;
  int64_t last = 0;
  for (int64_t d = 0; d < t.dim(); ++d) last += (t.size(d) - 1) * t.stride(d);
  work(t.const_data_ptr(), static_cast<size_t>((last + 1) * t.element_size()));
}

void reads(const at::Tensor& t, const std::string& what) {
  span_of(t, [&](const void* at, size_t size) { order().reads(at, size, current_stream, what); });
}
void writes(const at::Tensor& t, const std::string& what) {
  span_of(t, [&](const void* at, size_t size) { order().writes(at, size, current_stream, what); });
}

// The tensors of an operator's arguments.
void for_tensors(const c10::IValue& value, const std::function<void(const at::Tensor&)>& work) {
  if (value.isTensor()) return work(value.toTensor());
  if (value.isTensorList())
    for (const at::Tensor& t : value.toTensorVector()) work(t);
  if (value.isOptionalTensorList())
    for (const std::optional<at::Tensor>& t : value.toOptionalTensorVector())
      if (t) work(*t);
}

void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (inside) return at::native::cpu_fallback(op, stack);
  const c10::FunctionSchema& schema = op.schema();
  const std::string& name = schema.name();
  const auto arguments = torch::jit::last(*stack, schema.arguments().size());
  order().begin(current_stream);
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto* alias = schema.arguments()[i].alias_info();
    for_tensors(arguments[i], [&](const at::Tensor& t) {
      if (t.layout() != c10::kStrided) return;
      if (alias && alias->isWrite()) {
        writes(t, name);
      } else {
        reads(t, name);
      }
    });
  }
  inside = true;
  try {
    at::native::cpu_fallback(op, stack);
  } catch (...) {
    inside = false;
    throw;
  }
  inside = false;
  for (const c10::IValue& result : torch::jit::last(*stack, schema.returns().size()))
    for_tensors(result, [&](const at::Tensor& t) {
      if (t.defined() && t.layout() == c10::kStrided) writes(t, name);
    });
}

at::Tensor empty(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), &memory,
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(
      C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), &memory,
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(dtype));
}

// A tensor of the CPU over the same memory, whose pages stay open for as long as this object.
class Opened {
 public:
  explicit Opened(const at::Tensor& t) : t_(t) {
    if (!t.device().is_privateuseone() || t.numel() == 0) {
      cpu_ = t.device().is_privateuseone() ? at::empty(t.sizes(), t.scalar_type()) : t;
      return;
    }
    pages().open(t.const_data_ptr());
    open_ = true;
    cpu_ = at::from_blob(const_cast<void*>(t.const_data_ptr()), t.sizes(), t.strides(),
                         at::TensorOptions(t.scalar_type()));
  }
  ~Opened() {
    if (open_) pages().close(t_.const_data_ptr());
  }
  const at::Tensor& cpu() const { return cpu_; }

 private:
  at::Tensor t_, cpu_;
  bool open_ = false;
};

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const c10::NoGradGuard no_grad;
  const bool both = from.device() == to.device();
  const at::Tensor& host = from.is_cpu() ? from : to;
  const bool is_pinned = !both && pinned().holds(host.const_data_ptr());
  if (!inside) {
    order().begin(current_stream);
    reads(from, "a copy");
    writes(to, "a copy");
    if (is_pinned) {
      if (to.is_cpu())
        order().writes(to.const_data_ptr(), to.nbytes(), current_stream, "a copy");
      else
        order().reads(from.const_data_ptr(), from.nbytes(), current_stream, "a copy");
      pinned().open(host.const_data_ptr(), host.nbytes());
    }
  }
  {
    const Opened source(from), target(to);
    const bool was = std::exchange(inside, true);
    target.cpu().copy_(source.cpu());
    inside = was;
  }
  if (inside || both) return to;
  // A copy from or to memory that is not pinned is waited for, as on a GPU.
  if (non_blocking && is_pinned)
    pinned().close(host.const_data_ptr(), host.nbytes(), to.is_cpu(),
                   order().of_stream(current_stream));
  else
    host_waits(order().of_stream(current_stream));
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Scalar local_scalar_dense(const at::Tensor& t) {
  order().begin(current_stream);
  reads(t, "item");
  host_waits(order().of_stream(current_stream));
  const Opened opened(t);
  return opened.cpu().item();
}

const at::Tensor& resize(const at::Tensor& t, at::IntArrayRef size,
                         std::optional<at::MemoryFormat>) {
  t.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  c10::StorageImpl* storage = t.storage().unsafeGetStorageImpl();
  if (const size_t wanted = (t.storage_offset() + t.numel()) * t.element_size();
      wanted > storage->nbytes()) {
    TORCH_CHECK(storage->nbytes() == 0, "pretend device: grows only what is empty");
    storage->set_data_ptr_noswap(memory.allocate(wanted));
    storage->set_nbytes(wanted);
  }
  return t;
}

// Sparse tensors are pairs of dense ones.
at::Tensor coalesce(const at::Tensor& t) {
  const at::Tensor cpu =
      at::_sparse_coo_tensor_unsafe(t._indices().cpu(), t._values().cpu(), t.sizes()).coalesce();
  return at::_sparse_coo_tensor_unsafe(cpu.indices().to(kDevice), cpu.values().to(kDevice),
                                       t.sizes(), t.options(), /*is_coalesced=*/true);
}

at::Tensor to_dense(const at::Tensor& t, std::optional<at::ScalarType>, std::optional<bool>) {
  return at::zeros(t.sizes(), t._values().options())
      .index_add_(0, t._indices().select(0, 0), t._values());
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
}
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("resize_", resize);
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("view", at::native::view);
  m.impl("view.dtype", at::native::view_dtype);
  m.impl("_reshape_alias", at::native::_reshape_alias);
  m.impl("unfold", at::native::unfold);
  m.impl("set_.source_Storage_storage_offset", at::native::set_storage_cpu_);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", local_scalar_dense);
}
TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) {
  m.impl("empty.memory_format", at::native::empty_sparse_symint);
  m.impl("clone", at::native::clone_sparse);
  m.impl("copy_sparse_to_sparse_", at::native::copy_sparse_);
  m.impl("_coalesce", coalesce);
  m.impl("_to_dense", to_dense);
  m.impl("_indices", at::native::_indices_sparse);
  m.impl("_values", at::native::_values_sparse);
  m.impl("indices", at::native::indices_sparse);
  m.impl("values", at::native::values_sparse);
  m.impl("_nnz", at::native::_nnz_sparse);
  m.impl("is_coalesced", at::native::is_coalesced_sparse);
  m.impl("_coalesced_", at::native::_coalesced_sparse_);
  m.impl("sparse_dim", at::native::sparse_dim_sparse);
  m.impl("dense_dim", at::native::dense_dim_sparse);
  m.impl("_sparse_coo_tensor_with_dims", at::native::new_with_dims_sparse);
  m.impl("_sparse_coo_tensor_with_dims_and_tensors",
         at::native::new_with_dims_and_tensor_sparse_symint);
}

}  // namespace

void install() {
  static const bool once = [] {
    c10::register_privateuse1_backend("pretend");
    c10::SetAllocator(kType, &memory);
    static c10::impl::DeviceGuardImplRegistrar guard(kType, new Guard);
    static Hooks hooks;
    at::RegisterPrivateUse1HooksInterface(&hooks);
    return true;
  }();
  (void)once;
}

void in_stream(const c10::Stream& stream, const std::vector<torch::Tensor>& read,
               const std::vector<torch::Tensor>& written, const std::function<void()>& work) {
  const c10::StreamGuard in(stream);
  order().begin(current_stream);
  for (const torch::Tensor& t : read) reads(t, "the transport");
  for (const torch::Tensor& t : written) writes(t, "the transport");
  const bool was = std::exchange(inside, true);
  try {
    work();
  } catch (...) {
    inside = was;
    throw;
  }
  inside = was;
}

int64_t waits() { return order().waits(); }
int64_t bytes() { return pages().bytes(); }

}  // namespace anymesh::pretend
