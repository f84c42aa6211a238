// What an mdspan of a kernel's parameters is made of, as its compiler has it: values that differ in one part each, in
// the image of a variable. interop.kernel appends this to the source, and reads the image of what was compiled.
#ifdef __CUDACC_RTC__  // nvcc would look for a file of this name
#line 1 "interop's probe of mdspans"
#endif
#include <cuda/std/mdspan>

namespace interop_probe {

template <unsigned place, class First, class... Rest>
struct Nth : Nth<place - 1, Rest...> {};
template <class First, class... Rest>
struct Nth<0, First, Rest...> {
  using type = First;
};
template <unsigned place, class Kernel>
struct Parameter;
template <unsigned place, class... All>
struct Parameter<place, void (*)(All...)> : Nth<place, All...> {};

template <class T>
struct Plain {
  using type = T;
  static constexpr bool kIsConst = false;
};
template <class T>
struct Plain<const T> {
  using type = T;
  static constexpr bool kIsConst = true;
};
template <class X, class Y>
struct Same {
  static constexpr bool kIs = false;
};
template <class X>
struct Same<X, X> {
  static constexpr bool kIs = true;
};

template <int... numbers>
struct List {};
template <int count, int... numbers>
struct Below : Below<count - 1, count - 1, numbers...> {};
template <int... numbers>
struct Below<0, numbers...> {
  using type = List<numbers...>;
};

// A value whose extents and strides are 1 where they are not static, but for one of them, which is 2: extent `changed`,
// or a stride, which come behind the extents.
template <class M>
struct Maker {
  using I = typename M::index_type;
  using E = typename M::extents_type;
  static constexpr bool kIsStrided = Same<typename M::layout_type, cuda::std::layout_stride>::kIs;

  static __host__ __device__ constexpr I extent(int d, int changed) {
    return M::static_extent(d) != cuda::std::dynamic_extent ? I(M::static_extent(d)) : I(d == changed ? 2 : 1);
  }
  template <int... d>
  static __host__ __device__ constexpr M make(typename M::data_handle_type data, int changed, List<d...>) {
    if constexpr (kIsStrided) {
      using Strides = cuda::std::array<I, sizeof...(d)>;
      const Strides strides{I(d + int(sizeof...(d)) == changed ? 2 : 1)...};
      return M(data, typename M::mapping_type(E(extent(d, changed)...), strides));
    } else {
      return M(data, typename M::mapping_type(E(extent(d, changed)...)));
    }
  }
};

template <class M>
struct Facts {
  long long numbers[6 + M::rank()];
  M values[1 + 2 * M::rank()];
};
template <class M, int... d, int... changed>
__host__ __device__ constexpr Facts<M> facts(typename M::data_handle_type data, List<d...> dimensions,
                                             List<changed...>) {
  using I = typename M::index_type;
  using Element = typename M::element_type;
  constexpr bool kIsPlain = Same<typename M::accessor_type, cuda::std::default_accessor<Element>>::kIs;
  constexpr char kLayout = Same<typename M::layout_type, cuda::std::layout_right>::kIs  ? 'C'
                           : Same<typename M::layout_type, cuda::std::layout_left>::kIs ? 'F'
                           : Maker<M>::kIsStrided                                       ? 'S'
                                                                                        : '?';
  return {{sizeof(M), kIsPlain ? kLayout : '?', sizeof(I), I(-1) < I(0), Plain<Element>::kIsConst, M::rank(),
           static_cast<long long>(M::static_extent(d))...},
          {Maker<M>::make(data, -1, dimensions), Maker<M>::make(data, changed, dimensions)...}};
}

}  // namespace interop_probe

#define INTEROP_PROBE(place, ...)                                                                            \
  namespace interop_probe {                                                                                  \
  using M##place = Parameter<place, decltype(&__VA_ARGS__)>::type;                                           \
  __device__ Plain<M##place::element_type>::type target_##place[1];                                          \
  extern "C" __device__ Facts<M##place> interop_probe_##place =                                              \
      facts<M##place>(target_##place, Below<M##place::rank()>::type(), Below<2 * M##place::rank()>::type()); \
  }
