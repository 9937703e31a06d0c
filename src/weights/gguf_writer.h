/**
 * Writes one GGUF file (version 3), streaming as writer.h does: declare, begin, data, commit.
 */
#ifndef H3_WEIGHTS_GGUF_WRITER_H
#define H3_WEIGHTS_GGUF_WRITER_H

#include "file.h"
#include "tensor.h"

typedef struct h3_gguf_writer h3_gguf_writer;

H3_NODISCARD h3_status h3_gguf_writer_open(h3_gguf_writer **out, const char *path);
/** A text among the key-values. Before h3_gguf_begin. */
H3_NODISCARD h3_status h3_gguf_meta(h3_gguf_writer *w, const char *key, const char *value);
/** type: H3_F32, H3_BF16, H3_F16, or H3_DTYPE_COUNT for Q8_0. Rank above 4 is folded into the third
 * axis and told by comfy.gguf.orig_shape. */
H3_NODISCARD h3_status h3_gguf_declare(h3_gguf_writer *w, const char *name, uint8_t type, int rank,
                                       const int64_t *ne);
/** The same with any ggml type, and extents (n_orig of them) that it is told to have had before they
 *  were folded into these. */
H3_NODISCARD h3_status h3_gguf_declare_as(h3_gguf_writer *w, const char *name, uint32_t type,
                                          int rank, const int64_t *ne, int n_orig,
                                          const int64_t *orig);
H3_NODISCARD h3_status h3_gguf_begin(h3_gguf_writer *w);
/** The next bytes of the current tensor; padding between tensors is added here. */
H3_NODISCARD h3_status h3_gguf_put(h3_gguf_writer *w, const void *data, size_t bytes);
/** n values (a multiple of 32) as Q8_0 blocks: d = amax / 127 in f16, q = round(x / d). */
H3_NODISCARD h3_status h3_gguf_put_q8_0(h3_gguf_writer *w, const float *v, int64_t n);
H3_NODISCARD h3_status h3_gguf_commit(h3_gguf_writer **w);
void h3_gguf_abort(h3_gguf_writer **w);

#endif
