/* h3-det-linear-v1: linear layers in FP32 whose every output element has one fixed order of summation.
 *
 * The order depends on K alone (input gradient: on N alone, weight and bias gradient: on T alone), so the bits of a row
 * depend neither on the rows that share its call, nor on the number of threads, nor on the machine. docs/contract.md
 * gives the orders.
 *
 * T is the number of rows (the batch), K the number of inputs of the layer, N the number of its outputs. Matrices are
 * FP32, row-major and dense:
 *
 *     x, dx (T, K)     w, dw (N, K)     bias, db (N)     y, pre, g, z, dz (T, N)
 *
 * Every function that computes
 *   - returns DET_LINEAR_OK, or another code after which det_linear_last_error() says in words what was wrong;
 *   - checks its arguments before it writes anything: sizes must be positive and K a multiple of 4, no pointer may be
 *     null, x, w, dx and dw must be aligned to 16 bytes (their rows are cut into chunks of 16 bytes) and the others
 *     to 4, and what is written may overlap nothing else;
 *   - takes `threads`, at least 1: how many CPU threads may share the work (a CUDA library ignores it);
 *   - takes `stream`: the CUDA stream to work on, never NULL (the legacy default stream is cudaStreamLegacy); the call
 *     returns when the work is enqueued. A stream that the driver no longer knows is refused where the driver says so;
 *     CUDA promises no answer about a destroyed one, and may end the process: keep it until the call returns. On a CPU it
 *     must be NULL;
 *   - computes in round-to-nearest with subnormal numbers, and restores the caller's floating-point mode.
 * Functions may be called from several threads at once.
 */
#ifndef DET_LINEAR_H
#define DET_LINEAR_H

#include <stdint.h>

#define DET_LINEAR_ABI_VERSION 2

#define DET_LINEAR_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

enum {
    DET_LINEAR_OK = 0,
    DET_LINEAR_BAD_ARGUMENT = 1, /* nothing was written */
    DET_LINEAR_NO_MEMORY = 2,    /* what the call writes holds no meaning */
    DET_LINEAR_NO_THREAD = 3,    /* a thread could not be started; what the call writes holds no meaning */
    DET_LINEAR_FAILED = 4,       /* CUDA failed; what the call writes holds no meaning */
};

enum {
    DET_LINEAR_ACTIVATION_NONE = 0,
    DET_LINEAR_ACTIVATION_SILU = 1,          /* with the device's own expf: on a CPU the same as the next */
    DET_LINEAR_ACTIVATION_SILU_PORTABLE = 2, /* with the nearest float to the exponential, the same on every device */
};

/* "h3-det-linear-v1". */
DET_LINEAR_API const char *det_linear_contract(void);

/* The DET_LINEAR_ABI_VERSION that the library was built with. */
DET_LINEAR_API int32_t det_linear_abi_version(void);

/* Where the pointers that it is given must lie: "cpu" or "cuda". A CUDA library works on the current device. */
DET_LINEAR_API const char *det_linear_device(void);

/* NULL when this machine can run the library, otherwise in words why not. Safe to call on any machine. */
DET_LINEAR_API const char *det_linear_unavailable(void);

/* What was wrong with the calling thread's last failed call; empty before the first. */
DET_LINEAR_API const char *det_linear_last_error(void);

/* y = bias + x w^T. With an activation that sum is kept in pre and y = silu(pre); without an activation
 * pre must be NULL. */
DET_LINEAR_API int32_t det_linear_forward(const float *x, const float *w, const float *bias, float *y, float *pre,
                                          int64_t t, int64_t n, int64_t k, int32_t activation, int32_t threads,
                                          void *stream);

/* dx = g w. */
DET_LINEAR_API int32_t det_linear_input_gradient(const float *g, const float *w, float *dx, int64_t t, int64_t n,
                                                 int64_t k, int32_t threads, void *stream);

/* dw = g^T x. */
DET_LINEAR_API int32_t det_linear_weight_gradient(const float *g, const float *x, float *dw, int64_t t, int64_t n,
                                                  int64_t k, int32_t threads, void *stream);

/* db = the sum of g's rows. */
DET_LINEAR_API int32_t det_linear_bias_gradient(const float *g, float *db, int64_t t, int64_t n, int32_t threads,
                                                void *stream);

/* dz = g silu'(z), z being the kept pre-activation and `activation` the one it was kept for. */
DET_LINEAR_API int32_t det_linear_silu_backward(const float *g, const float *z, float *dz, int64_t t, int64_t n,
                                                int32_t activation, int32_t threads, void *stream);

/* A layer with SiLU and one without, as the calls above one after the other: H outputs of the first are the inputs of the
 * second. z, hidden = silu(z) are (T, H), y is (T, N). Both K and H must be multiples of 4. */
DET_LINEAR_API int32_t det_linear_mlp_forward(const float *x, const float *w1, const float *b1, const float *w2,
                                              const float *b2, float *z, float *hidden, float *y, int64_t t, int64_t k,
                                              int64_t h, int64_t n, int32_t activation, int32_t threads, void *stream);

/* All gradients of that, for the gradient g (T, N) of y; dhidden and dz (T, H) are those of hidden and z. */
DET_LINEAR_API int32_t det_linear_mlp_backward(const float *g, const float *x, const float *w1, const float *w2,
                                               const float *z, const float *hidden, float *dx, float *dw1, float *db1,
                                               float *dw2, float *db2, float *dhidden, float *dz, int64_t t, int64_t k,
                                               int64_t h, int64_t n, int32_t activation, int32_t threads, void *stream);

/* y[i] = exp(x[i]) as `activation` takes it, so that it can be checked alone. */
DET_LINEAR_API int32_t det_linear_expf(const float *x, float *y, int64_t count, int32_t activation, int32_t threads,
                                       void *stream);

#ifdef __cplusplus
}
#endif

#endif
