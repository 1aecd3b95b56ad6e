#include "framework/kernels/rows.h"

#include "framework/lanes.h"

namespace anymesh {

static_assert(kRowMultiple == kLanes);

template <class T>
void scaled(const float* row, float scale, int64_t width, T* out) {
  in_widest([=]<class Lanes>(Lanes) ANYMESH_INLINED {
    for (int64_t j = 0; j < width; j += kLanes) store(out + j, load<Lanes>(row + j) * scale);
  });
}

void added(const float* a, const c10::BFloat16* b, int64_t width, c10::BFloat16* out) {
  in_widest([=]<class Lanes>(Lanes) ANYMESH_INLINED {
    for (int64_t j = 0; j < width; j += kLanes)
      store(out + j, load<Lanes>(a + j) + load<Lanes>(b + j));
  });
}

template void scaled(const float*, float, int64_t, float*);
template void scaled(const float*, float, int64_t, c10::BFloat16*);

}  // namespace anymesh
