/* Products of a few vectors with a weight in half precision, which is widened in registers; sums are in float32.

   few_rows.py computes the same with torch. This is plain C11 with GNU's vectors; if the compiler can, it compiles
   the function for several processors, as in tile_pass.c. */

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12
#define EACH_PROCESSOR __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define EACH_PROCESSOR
#endif
#define INLINED static inline __attribute__((always_inline)) /* into the version for each processor */

#define LANES 16
#define MOST_ROWS 4 /* at a time: with two rows of the weight, they need eight sums, which fit in registers */

typedef float floats __attribute__((vector_size(4 * LANES)));
typedef uint32_t words __attribute__((vector_size(4 * LANES)));
typedef uint16_t halves __attribute__((vector_size(2 * LANES)));

/* Moved to the bits of a float32, a float16 is 2^-112 times its value, even if it is subnormal. */
#define TO_FLOAT16 0x1p112f
#define FLOAT16_INFINITY 0x0f800000u /* moved bits at or above this are infinity or NaN */

/* LANES numbers of a weight as float32. */
INLINED void widen(floats *wide, const uint16_t *place, int is_bfloat16)
{
    halves narrow;
    memcpy(&narrow, place, sizeof narrow);
    words bits = __builtin_convertvector(narrow, words);
    if (is_bfloat16) {
        *wide = (floats)(bits << 16);
        return;
    }
    words moved = (bits & 0x7fff) << 13, sign = (bits & 0x8000) << 16;
    words is_finite = (words)(moved < FLOAT16_INFINITY);
    words finite = (words)((floats)moved * TO_FLOAT16), other = moved | 0x7f800000u;
    *wide = (floats)((finite & is_finite) | (other & ~is_finite) | sign);
}

/* Products of `num_rows` vectors with one or two rows of the weight (`next` is the offset of the second). */
INLINED void multiply(const float *rows, int64_t num_rows, int64_t dim, const uint16_t *weight, int64_t next,
                      int64_t num_weights, float *output, int64_t stride, int is_bfloat16)
{
    floats sums[MOST_ROWS][2];
    memset(sums, 0, sizeof sums);
    for (int64_t place = 0; place < dim; place += LANES) {
        floats first, second, row;
        int64_t left = dim - place < LANES ? dim - place : LANES;
        if (left < LANES) { /* the last numbers, padded with zeros */
            uint16_t ends[2][LANES] = {{0}};
            memcpy(ends[0], weight + place, 2 * left);
            memcpy(ends[1], weight + next + place, 2 * left);
            widen(&first, ends[0], is_bfloat16);
            widen(&second, ends[1], is_bfloat16);
        } else {
            widen(&first, weight + place, is_bfloat16);
            widen(&second, weight + next + place, is_bfloat16);
        }
        for (int64_t r = 0; r < num_rows; r++) {
            if (left < LANES) {
                memset(&row, 0, sizeof row);
                memcpy(&row, rows + r * dim + place, 4 * left);
            } else {
                memcpy(&row, rows + r * dim + place, sizeof row);
            }
            sums[r][0] += first * row;
            sums[r][1] += second * row;
        }
    }
    for (int64_t r = 0; r < num_rows; r++)
        for (int64_t which = 0; which < num_weights; which++) {
            float total = 0;
            for (int lane = 0; lane < LANES; lane++)
                total += sums[r][which][lane];
            output[r * stride + which] = total;
        }
}

INLINED void multiply_all(const float *rows, int64_t num_rows, int64_t dim, const uint16_t *weight,
                          int64_t num_weights, float *output, int64_t stride, int is_bfloat16)
{
    for (int64_t w = 0; w < num_weights; w += 2) {
        int64_t both = num_weights - w > 1 ? 2 : 1, next = both > 1 ? dim : 0;
        const uint16_t *here = weight + w * dim;
        int64_t r = 0;
        for (; num_rows - r >= MOST_ROWS; r += MOST_ROWS)
            multiply(rows + r * dim, MOST_ROWS, dim, here, next, both, output + r * stride + w, stride, is_bfloat16);
        /* One call per count, so that the sums stay in registers. */
        const float *rest = rows + r * dim;
        float *rest_output = output + r * stride + w;
        if (num_rows - r == 3)
            multiply(rest, 3, dim, here, next, both, rest_output, stride, is_bfloat16);
        else if (num_rows - r == 2)
            multiply(rest, 2, dim, here, next, both, rest_output, stride, is_bfloat16);
        else if (num_rows - r == 1)
            multiply(rest, 1, dim, here, next, both, rest_output, stride, is_bfloat16);
    }
}

/* output[r, w] = rows[r] . weight[w]: rows (row, dim), weight (num_weights, dim); `stride` separates output rows. */
EACH_PROCESSOR void attn_few_rows(const float *rows, int64_t num_rows, int64_t dim, const uint16_t *weight,
                                  int64_t num_weights, float *output, int64_t stride, int64_t is_bfloat16)
{
    if (is_bfloat16)
        multiply_all(rows, num_rows, dim, weight, num_weights, output, stride, 1);
    else
        multiply_all(rows, num_rows, dim, weight, num_weights, output, stride, 0);
}
