/* Local SGD of several clients on small dense networks with cross-entropy, all steps in one call.
 *
 * REAL is float or double. A layer's weights are kept transposed, [inputs + 1][outputs], with
 * outputs padded to whole vectors and the bias as the last row, whose input is 1. So every loop
 * runs over whole vectors along the outputs. Everything a client needs stays in the first caches.
 */

#include <math.h>
#include <stdint.h>
#include <string.h>

#define VECTOR_BYTES 64
#define LANES ((int64_t)(VECTOR_BYTES / sizeof(REAL)))
#define BLOCK 6 /* rows that share a load of the weights */

typedef REAL vec __attribute__((vector_size(VECTOR_BYTES), may_alias));

#ifdef SINGLE
typedef int32_t ivec __attribute__((vector_size(VECTOR_BYTES), may_alias));

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
    for (int64_t i = 0; i < LANES; i++) x[i] = exp(x[i]);
    return x;
}
#endif

static inline int64_t padded(int64_t n) { return (n + LANES - 1) / LANES * LANES; }

/* out[b] = sum over d of a[b][d] * w[d], for `rows` rows, at most BLOCK, of one vector each */
#define ACCUMULATE(ROWS)                                                                          \
    {                                                                                             \
        vec sum[ROWS];                                                                            \
        for (int j = 0; j < ROWS; j++) sum[j] = (vec){};                                          \
        for (int64_t d = 0; d < inner; d++) {                                                     \
            vec each = *(const vec *)(w + d * w_stride);                                          \
            for (int j = 0; j < ROWS; j++) sum[j] += a[j * a_row + d * a_step] * each;            \
        }                                                                                         \
        for (int j = 0; j < ROWS; j++) out[j] = sum[j];                                           \
    }

static inline void accumulate(int64_t rows, int64_t inner, const REAL *a, int64_t a_row,
                              int64_t a_step, const REAL *w, int64_t w_stride, vec *out)
{
    switch (rows) {
    case 1: ACCUMULATE(1) break;
    case 2: ACCUMULATE(2) break;
    case 3: ACCUMULATE(3) break;
    case 4: ACCUMULATE(4) break;
    case 5: ACCUMULATE(5) break;
    default: ACCUMULATE(6) break;
    }
}

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
    int64_t width, a_width; /* outputs, and inputs with the 1 of the bias, padded */
    REAL *w, *constant;     /* [inputs + 1][width] */
    REAL *a, *g;            /* inputs [rows][a_width]; outputs, then their gradient [rows][width] */
} Layer;

/* w <- factor * w - rate * (a^T g + constant), for one layer */
static void update(const Layer *layer, int64_t rows, REAL factor, REAL rate, int has_constant)
{
    int64_t count = layer->inputs + 1, width = layer->width;
    for (int64_t o = 0; o < width; o += LANES)
        for (int64_t d = 0; d < count; d += BLOCK) {
            int64_t some = count - d < BLOCK ? count - d : BLOCK;
            vec change[BLOCK];
            accumulate(some, rows, layer->a + d, 1, layer->a_width, layer->g + o, width, change);
            for (int64_t j = 0; j < some; j++) {
                vec *w = (vec *)(layer->w + (d + j) * width + o);
                if (has_constant) change[j] += *(vec *)(layer->constant + (d + j) * width + o);
                *w = *w * factor - change[j] * rate;
            }
        }
}

/* Copy a layer's weights [outputs][inputs] and bias between a client's vector and scratch memory. */
static void load(const Layer *layer, REAL *w, const REAL *x, int64_t weight, int64_t bias)
{
    memset(w, 0, sizeof(REAL) * (layer->inputs + 1) * layer->width);
    for (int64_t o = 0; o < layer->outputs; o++) {
        for (int64_t d = 0; d < layer->inputs; d++)
            w[d * layer->width + o] = x[weight + o * layer->inputs + d];
        if (bias >= 0) w[layer->inputs * layer->width + o] = x[bias + o];
    }
}

static void store(const Layer *layer, REAL *x, int64_t weight, int64_t bias)
{
    for (int64_t o = 0; o < layer->outputs; o++) {
        for (int64_t d = 0; d < layer->inputs; d++)
            x[weight + o * layer->inputs + d] = layer->w[d * layer->width + o];
        if (bias >= 0) x[bias + o] = layer->w[layer->inputs * layer->width + o];
    }
}

/* Numbers of scratch memory that `train` needs, with room to align it. */
int64_t scratch_numbers(int64_t layers, const int64_t *sizes, int64_t rows)
{
    int64_t total = LANES;
    for (int64_t l = 0; l < layers; l++)
        total += 2 * (sizes[l] + 1) * padded(sizes[l + 1]) + rows * padded(sizes[l] + 1)
               + rows * padded(sizes[l + 1]);
    return total;
}

/* Train clients 0 ... clients - 1; x holds their starts and receives their models.
 *
 * sizes[layers + 1]: numbers of a sample, of each hidden layer, of classes
 * weight_at, bias_at[layers]: places in a client's vector; -1 without a bias
 * samples[step, client, place], counts[step, client]: which rows of data make up the batches
 * steps[client], rates[step], scales[client] s, decays[client] d: a step is
 *     x <- (1 - rate * d) * x - rate * (s * gradient + constant)
 * with max(z, 0) between layers; constant may be NULL, or shared with a stride of 0
 */
void train(int64_t clients, int64_t layers, const int64_t *sizes, const int64_t *weight_at,
           const int64_t *bias_at, const REAL *data, const int64_t *labels,
           const int64_t *samples, int64_t samples_step, int64_t samples_client,
           const int64_t *counts, int64_t counts_step, int64_t counts_client, int64_t rows,
           const int64_t *steps, const double *rates, const double *scales, const double *decays,
           const REAL *constant, int64_t constant_stride, REAL *x, int64_t x_stride, REAL *scratch)
{
    Layer net[layers];
    REAL *at = (REAL *)(((uintptr_t)scratch + VECTOR_BYTES - 1) / VECTOR_BYTES * VECTOR_BYTES);
    for (int64_t l = 0; l < layers; l++) {
        Layer *layer = net + l;
        layer->inputs = sizes[l];
        layer->outputs = sizes[l + 1];
        layer->width = padded(sizes[l + 1]);
        layer->a_width = padded(sizes[l] + 1);
        int64_t numbers = (sizes[l] + 1) * layer->width;
        layer->w = at;
        layer->constant = at + numbers;
        layer->a = at + 2 * numbers;
        layer->g = layer->a + rows * layer->a_width;
        at = layer->g + rows * layer->width;
    }
    Layer *last = net + layers - 1;
    for (int64_t k = 0; k < clients; k++) {
        REAL *own = x + k * x_stride;
        for (int64_t l = 0; l < layers; l++) {
            load(net + l, net[l].w, own, weight_at[l], bias_at[l]);
            if (constant)
                load(net + l, net[l].constant, constant + k * constant_stride, weight_at[l],
                     bias_at[l]);
        }
        for (int64_t s = 0; s < steps[k]; s++) {
            const int64_t *rows_of = samples + s * samples_step + k * samples_client;
            int64_t n = counts[s * counts_step + k * counts_client];
            for (int64_t b = 0; b < n; b++) {
                REAL *a = net[0].a + b * net[0].a_width;
                memcpy(a, data + rows_of[b] * sizes[0], sizeof(REAL) * sizes[0]);
                a[sizes[0]] = 1;
            }
            for (int64_t l = 0; l < layers; l++) {
                Layer *layer = net + l;
                int64_t inner = layer->inputs + (bias_at[l] >= 0);
                for (int64_t o = 0; o < layer->width; o += LANES)
                    for (int64_t b = 0; b < n; b += BLOCK) {
                        int64_t some = n - b < BLOCK ? n - b : BLOCK;
                        vec out[BLOCK];
                        accumulate(some, inner, layer->a + b * layer->a_width, layer->a_width, 1,
                                   layer->w + o, layer->width, out);
                        for (int64_t j = 0; j < some; j++)
                            *(vec *)(layer->g + (b + j) * layer->width + o) = out[j];
                    }
                if (layer == last) break;
                for (int64_t b = 0; b < n; b++) {
                    REAL *z = layer->g + b * layer->width;
                    REAL *a = net[l + 1].a + b * net[l + 1].a_width;
                    for (int64_t o = 0; o < layer->outputs; o++) a[o] = z[o] < 0 ? 0 : z[o];
                    a[layer->outputs] = 1;
                }
            }
            REAL scale = (REAL)(scales[k] / n);
            derivative(last->g, n, last->outputs, labels, rows_of, scale);
            REAL rate = (REAL)rates[s], factor = (REAL)(1 - rates[s] * decays[k]);
            for (int64_t l = layers - 1; l >= 0; l--) {
                Layer *layer = net + l;
                if (l) { /* before the update: the gradient of the inputs at the present weights */
                    Layer *before = net + l - 1;
                    for (int64_t b = 0; b < n; b++) {
                        const REAL *g = layer->g + b * layer->width;
                        const REAL *a = layer->a + b * layer->a_width;
                        REAL *back = before->g + b * before->width;
                        for (int64_t i = 0; i < layer->inputs; i++) {
                            vec sum = (vec){};
                            for (int64_t o = 0; o < layer->width; o += LANES)
                                sum += *(const vec *)(g + o)
                                     * *(const vec *)(layer->w + i * layer->width + o);
                            for (int64_t half = LANES / 2; half; half /= 2)
                                for (int64_t j = 0; j < half; j++) sum[j] += sum[j + half];
                            back[i] = a[i] <= 0 ? 0 : sum[0];
                        }
                        for (int64_t i = layer->inputs; i < before->width; i++) back[i] = 0;
                    }
                }
                update(layer, n, factor, rate, constant != 0);
            }
        }
        for (int64_t l = 0; l < layers; l++) store(net + l, own, weight_at[l], bias_at[l]);
    }
}
