/* Local SGD of several clients on dense networks with cross-entropy, all steps in one call.
 *
 * REAL is float or double. A layer's weights are kept transposed, [inputs + 1][width], with the
 * outputs padded to whole vectors and the bias as the last row, whose input is 1. So the forward
 * pass and the update run over whole vectors along the outputs, and what a client needs stays in
 * a core's caches during all its steps.
 *
 * A client's result depends on nothing but its own problem and batches: not on the other clients
 * of the call, nor on the number of threads that make calls.
 */

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef SINGLE
#define REAL float
#define REAL_BYTES 4
#define INTEGER int32_t
#else
#define REAL double
#define REAL_BYTES 8
#define INTEGER int64_t
#endif

/* A tile of ROWS x VECTORS sums, or 2 ROWS x 1, must fit into the processor's vector registers. */
#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#define ROWS 8
#elif defined(__AVX__)
#define VECTOR_BYTES 32
#define ROWS 4
#else
#define VECTOR_BYTES 16
#define ROWS 4
#endif
#define VECTORS 3
#define LANES (VECTOR_BYTES / REAL_BYTES)
#define ALIGNMENT 64 /* bytes: a line of the cache */

typedef REAL vec __attribute__((vector_size(VECTOR_BYTES), may_alias));
typedef INTEGER ivec __attribute__((vector_size(VECTOR_BYTES), may_alias));

/* The same numbers as REAL and in double precision. */
#define WIDE_LANES 8
typedef double wide __attribute__((vector_size(WIDE_LANES * 8), may_alias));
typedef REAL narrow __attribute__((vector_size(WIDE_LANES * REAL_BYTES), may_alias));

/* The lanes of two vectors with even numbers, and those with odd numbers. */
#if LANES == 16
#define EVEN 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#define ODD 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31
#elif LANES == 8
#define EVEN 0, 2, 4, 6, 8, 10, 12, 14
#define ODD 1, 3, 5, 7, 9, 11, 13, 15
#elif LANES == 4
#define EVEN 0, 2, 4, 6
#define ODD 1, 3, 5, 7
#else
#define EVEN 0, 2
#define ODD 1, 3
#endif
#if defined(__clang__) || __GNUC__ >= 12
#define LANES_OF(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define LANES_OF(a, b, ...) __builtin_shuffle(a, b, (ivec){__VA_ARGS__})
#endif

/* Lane j of the result is the sum of the lanes of each[j], which is overwritten. */
static inline __attribute__((always_inline)) vec sums_of_lanes(vec *each)
{
#pragma GCC unroll 8
    for (int half = LANES / 2; half; half /= 2)
#pragma GCC unroll 8
        for (int j = 0; j < half; j++) {
            vec a = each[2 * j], b = each[2 * j + 1];
            each[j] = LANES_OF(a, b, EVEN) + LANES_OF(a, b, ODD);
        }
    return each[0];
}

#ifdef SINGLE
/* exp of numbers up to 0, to two units in the last place; NaN stays NaN. */
static inline vec exponential(vec x)
{
    const vec low = (vec){} - 87.0f;
    ivec below = x < low;
    x = (vec)(((ivec)low & below) | ((ivec)x & ~below));
    /* x = n ln 2 + r: the shift by 1.5 * 2^23 rounds n to a whole number */
    const float shift = 12582912.0f;
    vec n = (x * 1.44269504f + shift) - shift;
    vec r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    vec p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    ivec power = (__builtin_convertvector(n, ivec) + 127) << 23;
    return p * (vec)power;
}
#else
static inline vec exponential(vec x)
{
    for (int i = 0; i < LANES; i++) x[i] = exp(x[i]);
    return x;
}
#endif

static inline int64_t padded(int64_t n) { return (n + LANES - 1) / LANES * LANES; }
static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* The next tile along `count` rows or vectors that are left: tiles of about equal size. */
static inline int64_t tile(int64_t count, int64_t most)
{
    int64_t tiles = (count + most - 1) / most;
    return (count + tiles - 1) / tiles;
}

/* out[j][v] = sum over d of a[j][d] * w[d][v], for `rows` rows of `vectors` vectors */
static inline __attribute__((always_inline)) void accumulate_tile(
    const int rows, const int vectors, int64_t inner, const REAL *a, int64_t a_row,
    int64_t a_step, const REAL *w, int64_t w_stride, vec out[2 * ROWS][VECTORS])
{
    vec sum[2 * ROWS][VECTORS];
#pragma GCC unroll 16
    for (int j = 0; j < rows; j++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) sum[j][v] = (vec){};
    for (int64_t d = 0; d < inner; d++) {
        const vec *each = (const vec *)(w + d * w_stride);
#pragma GCC unroll 16
        for (int j = 0; j < rows; j++) {
            REAL factor = a[j * a_row + d * a_step];
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++) sum[j][v] += factor * each[v];
        }
    }
#pragma GCC unroll 16
    for (int j = 0; j < rows; j++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) out[j][v] = sum[j][v];
}

#define TILE(R, V)                                                                                \
    case (R) * 4 + (V):                                                                           \
        accumulate_tile(R, V, inner, a, a_row, a_step, w, w_stride, out);                         \
        break;
#define TILES(R) TILE(R, 1) TILE(R, 2) TILE(R, 3)

static void accumulate(int64_t rows, int64_t vectors, int64_t inner, const REAL *a, int64_t a_row,
                       int64_t a_step, const REAL *w, int64_t w_stride, vec out[2 * ROWS][VECTORS])
{
    switch (rows * 4 + vectors) {
        TILES(1) TILES(2) TILES(3) TILES(4)
#if ROWS == 4
        TILE(5, 1) TILE(6, 1) TILE(7, 1) TILE(8, 1)
#else
        TILES(5) TILES(6) TILES(7) TILES(8)
        TILE(9, 1) TILE(10, 1) TILE(11, 1) TILE(12, 1)
        TILE(13, 1) TILE(14, 1) TILE(15, 1) TILE(16, 1)
#endif
    }
}

/* The most rows of a tile: twice as many if all outputs are one vector. */
static inline int64_t most_rows(int64_t width) { return width == LANES ? 2 * ROWS : ROWS; }

/* The derivative of the mean cross-entropy by the outputs z[b], times `factor`, in place. */
static void derivative(REAL *z, int64_t rows, int64_t classes, const int64_t *labels,
                       const int64_t *samples, REAL factor)
{
    int64_t width = padded(classes);
    for (int64_t b = 0; b < rows; b++, z += width) {
        REAL most = z[0], total = 0;
        for (int64_t o = 1; o < classes; o++) most = z[o] > most ? z[o] : most;
        for (int64_t o = 0; o < width; o += LANES) {
            vec *v = (vec *)(z + o);
            *v = exponential(*v - most);
        }
        for (int64_t o = classes; o < width; o++) z[o] = 0;
        for (int64_t o = 0; o < classes; o++) total += z[o];
        REAL share = factor / total;
        for (int64_t o = 0; o < width; o += LANES) *(vec *)(z + o) *= share;
        z[labels[samples[b]]] -= factor;
    }
}

/* A layer with its scratch memory. */
typedef struct {
    int64_t inputs, outputs;
    int64_t width, a_width;       /* outputs, and inputs with the 1 of the bias, padded */
    int64_t count;                /* inputs, with the 1 of the bias if there is one */
    int64_t numbers;              /* of the weights in use: count * width */
    int64_t weight, bias;         /* places in a client's vector; bias -1: none */
    REAL *w, *constant, *start;   /* [inputs + 1][width] */
    double *total;                /* [inputs + 1][width]: the weighted sum of the moves */
    REAL *a, *g;                  /* inputs [rows][a_width]; outputs, then gradient [rows][width] */
} Layer;

/* z = a w for all rows, into layer->g */
static void forward(const Layer *layer, int64_t rows)
{
    int64_t width = layer->width;
    for (int64_t b = 0, some; b < rows; b += some) {
        some = tile(rows - b, most_rows(width));
        for (int64_t o = 0, many; o < width; o += many * LANES) {
            vec out[2 * ROWS][VECTORS];
            many = tile((width - o) / LANES, VECTORS);
            accumulate(some, many, layer->count, layer->a + b * layer->a_width, layer->a_width, 1,
                       layer->w + o, width, out);
            for (int64_t j = 0; j < some; j++)
                for (int64_t v = 0; v < many; v++)
                    *(vec *)(layer->g + (b + j) * width + o + v * LANES) = out[j][v];
        }
    }
}

/* The inputs of the layer after it: max(z, 0), and the 1 of the bias. NaN stays NaN. */
static void activate(const Layer *layer, const Layer *after, int64_t rows)
{
    for (int64_t b = 0; b < rows; b++) {
        const REAL *z = layer->g + b * layer->width;
        REAL *a = after->a + b * after->a_width;
        for (int64_t o = 0; o < layer->outputs; o++) a[o] = z[o] < 0 ? 0 : z[o];
        a[layer->outputs] = 1;
    }
}

/* The gradient by the outputs of the layer before: g w^T where its activation is positive */
static void backward(const Layer *layer, const Layer *before, int64_t rows)
{
    int64_t width = layer->width;
    for (int64_t i = 0; i < layer->inputs; i += LANES) {
        int64_t some = least(layer->inputs - i, LANES);
        const REAL *w[LANES];
        /* Rows past the last input are not read: the last one stands for them. */
        for (int64_t j = 0; j < LANES; j++) w[j] = layer->w + (i + least(j, some - 1)) * width;
        for (int64_t b = 0; b < rows; b++) {
            const REAL *g = layer->g + b * width;
            vec sum[LANES];
            for (int j = 0; j < LANES; j++) sum[j] = (vec){};
            for (int64_t o = 0; o < width; o += LANES) {
                vec each = *(const vec *)(g + o);
#pragma GCC unroll 16
                for (int j = 0; j < LANES; j++) sum[j] += each * *(const vec *)(w[j] + o);
            }
            vec all = sums_of_lanes(sum);
            REAL *back = before->g + b * before->width + i;
            const REAL *a = layer->a + b * layer->a_width + i;
            *(vec *)back = all;
            for (int64_t j = 0; j < some; j++) back[j] = a[j] <= 0 ? 0 : back[j];
            for (int64_t j = some; j < LANES; j++) back[j] = 0;
        }
    }
}

/* w <- factor * w - rate * (a^T g + constant) */
static void update(const Layer *layer, int64_t rows, REAL factor, REAL rate, int has_constant)
{
    int64_t width = layer->width;
    for (int64_t d = 0, some; d < layer->count; d += some) {
        some = tile(layer->count - d, most_rows(width));
        for (int64_t o = 0, many; o < width; o += many * LANES) {
            vec change[2 * ROWS][VECTORS];
            many = tile((width - o) / LANES, VECTORS);
            accumulate(some, many, rows, layer->a + d, 1, layer->a_width, layer->g + o, width,
                       change);
            for (int64_t j = 0; j < some; j++)
                for (int64_t v = 0; v < many; v++) {
                    int64_t at = (d + j) * width + o + v * LANES;
                    vec *w = (vec *)(layer->w + at);
                    if (has_constant) change[j][v] += *(vec *)(layer->constant + at);
                    *w = *w * factor - change[j][v] * rate;
                }
        }
    }
}

/* Copy a layer's weights [outputs][inputs] and bias from a client's vector to scratch memory, and
 * back. In squares of LANES x LANES: every line of the cache is then read and written once. */
static void load(const Layer *layer, REAL *w, const REAL *x)
{
    int64_t inputs = layer->inputs, width = layer->width;
    for (int64_t o = 0; o < width; o += LANES) {
        int64_t outputs = least(layer->outputs - o, LANES);
        for (int64_t d = 0; d < inputs; d += LANES) {
            int64_t end = least(inputs, d + LANES);
            for (int64_t i = 0; i < LANES; i++)
                for (int64_t e = d; e < end; e++)
                    w[e * width + o + i] =
                        i < outputs ? x[layer->weight + (o + i) * inputs + e] : 0;
        }
        for (int64_t i = 0; i < LANES && layer->bias >= 0; i++)
            w[inputs * width + o + i] = i < outputs ? x[layer->bias + o + i] : 0;
    }
}

#define STORE(NAME, TYPE)                                                                         \
    static void NAME(const Layer *layer, const TYPE *w, TYPE *x)                                  \
    {                                                                                             \
        int64_t inputs = layer->inputs, outputs = layer->outputs, width = layer->width;           \
        for (int64_t o = 0; o < outputs; o += LANES) {                                            \
            int64_t last = least(outputs, o + LANES);                                             \
            for (int64_t d = 0; d < inputs; d += LANES) {                                         \
                int64_t end = least(inputs, d + LANES);                                           \
                for (int64_t i = o; i < last; i++)                                                \
                    for (int64_t e = d; e < end; e++)                                             \
                        x[layer->weight + i * inputs + e] = w[e * width + i];                     \
            }                                                                                     \
            for (int64_t i = o; i < last && layer->bias >= 0; i++)                                \
                x[layer->bias + i] = w[inputs * width + i];                                       \
        }                                                                                         \
    }
STORE(store, REAL)
STORE(store_total, double)

/* Return |w - start|^2 of a layer; with `add`, also add weight * (w - start) to its total. */
static inline double move(const Layer *layer, int add, double weight)
{
    wide squares = (wide){};
    double found = 0;
    int64_t at = 0;
    for (; at + WIDE_LANES <= layer->numbers; at += WIDE_LANES) {
        narrow step = *(const narrow *)(layer->w + at) - *(const narrow *)(layer->start + at);
        wide own = __builtin_convertvector(step, wide);
        if (add) *(wide *)(layer->total + at) += weight * own;
        squares += own * own;
    }
    for (; at < layer->numbers; at++) {
        double own = layer->w[at] - layer->start[at];
        if (add) layer->total[at] += weight * own;
        found += own * own;
    }
    for (int i = 0; i < WIDE_LANES; i++) found += squares[i];
    return found;
}

/* Bytes of scratch memory that `train` needs, with room to align it. */
int64_t scratch_bytes(int64_t layers, const int64_t *sizes, int64_t rows, int64_t sums)
{
    int64_t total = ALIGNMENT;
    for (int64_t l = 0; l < layers; l++) {
        int64_t numbers = (sizes[l] + 1) * padded(sizes[l + 1]);
        int64_t batch = rows * (padded(sizes[l] + 1) + padded(sizes[l + 1]));
        total += (3 * numbers + batch) * (int64_t)sizeof(REAL) + 5 * ALIGNMENT;
        if (sums) total += numbers * (int64_t)sizeof(double);
    }
    return total;
}

/* The next piece of scratch memory, aligned. */
static void *piece(char **at, int64_t bytes)
{
    void *found = *at;
    *at += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return found;
}

/* Train clients 0 ... clients - 1.
 *
 * sizes[layers + 1]: numbers of a sample, of each hidden layer, of classes
 * weight_at, bias_at[layers]: places in a client's vector; -1 without a bias
 * samples[step, client, place], counts[step, client]: which rows of data make up the batches
 * steps[client], rates[step], scales[client] s, decays[client] d: a step is
 *     x <- (1 - rate * d) * x - rate * (s * gradient + constant)
 * with max(z, 0) between layers; constant may be NULL. start and constant have a stride of 0 if
 * clients share them.
 * x: receives the clients' models; NULL if only sums of their moves are wanted. These need a
 *     shared start:
 * weights[client], sum, squares[client]: sum receives the sum of weight * (model - start), of the
 *     length of a client's vector, and squares |model - start|^2 of each client
 * most: if above 0, the weight of a client whose move is longer than that is divided by the excess,
 *     so that the sum is that of moves cut to this norm; weights receives the weights used
 */
void train(int64_t clients, int64_t layers, const int64_t *sizes, const int64_t *weight_at,
           const int64_t *bias_at, const REAL *data, const int64_t *labels,
           const int64_t *samples, int64_t samples_step, int64_t samples_client,
           const int64_t *counts, int64_t counts_step, int64_t counts_client, int64_t rows,
           const int64_t *steps, const double *rates, const double *scales, const double *decays,
           const REAL *constant, int64_t constant_stride, const REAL *start, int64_t start_stride,
           REAL *x, int64_t x_stride, double *weights, double *sum, double *squares,
           double most, char *scratch)
{
    Layer net[layers];
    char *at = (char *)(((uintptr_t)scratch + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
    for (int64_t l = 0; l < layers; l++) {
        Layer *layer = net + l;
        layer->inputs = sizes[l];
        layer->outputs = sizes[l + 1];
        layer->width = padded(sizes[l + 1]);
        layer->a_width = padded(sizes[l] + 1);
        layer->count = sizes[l] + (bias_at[l] >= 0);
        layer->numbers = layer->count * layer->width;
        layer->weight = weight_at[l];
        layer->bias = bias_at[l];
        int64_t bytes = layer->numbers * (int64_t)sizeof(REAL);
        layer->w = piece(&at, bytes);
        layer->constant = piece(&at, bytes);
        layer->start = piece(&at, bytes);
        layer->a = piece(&at, rows * layer->a_width * (int64_t)sizeof(REAL));
        layer->g = piece(&at, rows * layer->width * (int64_t)sizeof(REAL));
        layer->total = NULL;
        if (sum) {
            layer->total = piece(&at, layer->numbers * (int64_t)sizeof(double));
            memset(layer->total, 0, layer->numbers * sizeof(double));
        }
    }
    Layer *last = net + layers - 1;
    for (int64_t k = 0; k < clients; k++) {
        for (int64_t l = 0; l < layers; l++) {
            Layer *layer = net + l;
            if (!k || start_stride) load(layer, layer->start, start + k * start_stride);
            memcpy(layer->w, layer->start, layer->numbers * sizeof(REAL));
            if (constant && (!k || constant_stride))
                load(layer, layer->constant, constant + k * constant_stride);
        }
        for (int64_t s = 0; s < steps[k]; s++) {
            const int64_t *rows_of = samples + s * samples_step + k * samples_client;
            int64_t n = counts[s * counts_step + k * counts_client];
            for (int64_t b = 0; b < n; b++) {
                REAL *a = net[0].a + b * net[0].a_width;
                memcpy(a, data + rows_of[b] * sizes[0], sizeof(REAL) * sizes[0]);
                a[sizes[0]] = 1;
            }
            for (Layer *layer = net; layer <= last; layer++) {
                forward(layer, n);
                if (layer < last) activate(layer, layer + 1, n);
            }
            derivative(last->g, n, last->outputs, labels, rows_of, (REAL)(scales[k] / n));
            REAL rate = (REAL)rates[s], factor = (REAL)(1 - rates[s] * decays[k]);
            for (Layer *layer = last; layer >= net; layer--) {
                /* before the update: the gradient of the inputs is that at the present weights */
                if (layer > net) backward(layer, layer - 1, n);
                update(layer, n, factor, rate, constant != 0);
            }
        }
        if (sum && most > 0) {
            double square = 0;
            for (int64_t l = 0; l < layers; l++) square += move(net + l, 0, 0);
            if (square > most * most) weights[k] *= most / sqrt(square);
        }
        if (sum) squares[k] = 0;
        for (int64_t l = 0; l < layers; l++) {
            if (x) store(net + l, net[l].w, x + k * x_stride);
            if (sum) squares[k] += move(net + l, 1, weights[k]);
        }
    }
    for (int64_t l = 0; sum && l < layers; l++) store_total(net + l, net[l].total, sum);
}
