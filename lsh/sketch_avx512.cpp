#include "lsh/sketch_avx512.hpp"

namespace kvtier::lsh {

const sketch_kernels sketch_avx512_kernels{
    avx512::build,  avx512::prepare,        avx512::score,          avx512::count,
    avx512::square, avx512::sum_limits,     avx512::draw,           avx512::weigh,
    avx512::rise,   avx512::square_weights, avx512::add_mean_values};

}  // namespace kvtier::lsh
