#include "framework/kernels/rows.h"

#include "framework/lanes.h"

namespace anymesh {
namespace {

static_assert(kRowMultiple == kLanes);

template <class T>
ANYMESH_INLINE void scaled_loop(const float* row, float scale, int64_t width, T* out) {
  for (int64_t j = 0; j < width; j += kLanes) store(out + j, load(row + j) * scale);
}

}  // namespace

ANYMESH_WIDEST void scaled(const float* row, float scale, int64_t width, float* out) {
  scaled_loop(row, scale, width, out);
}

ANYMESH_WIDEST void scaled(const float* row, float scale, int64_t width, c10::BFloat16* out) {
  scaled_loop(row, scale, width, out);
}

ANYMESH_WIDEST void added(const float* a, const c10::BFloat16* b, int64_t width,
                          c10::BFloat16* out) {
  for (int64_t j = 0; j < width; j += kLanes) store(out + j, load(a + j) + load(b + j));
}

}  // namespace anymesh
