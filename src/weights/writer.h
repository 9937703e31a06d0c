/**
 * Writes one safetensors file, streaming: first every tensor is declared, then its bytes follow in
 * the same order. The file appears under its name only when it is complete (h3_atomic).
 */
#ifndef H3_WEIGHTS_WRITER_H
#define H3_WEIGHTS_WRITER_H

#include "file.h"
#include "tensor.h"

typedef struct h3_writer h3_writer;

H3_NODISCARD h3_status h3_writer_open(h3_writer **out, const char *path);

/** An entry of __metadata__. Before h3_writer_begin. */
H3_NODISCARD h3_status h3_writer_meta(h3_writer *w, const char *key, const char *value);

/** The next tensor. Before h3_writer_begin. */
H3_NODISCARD h3_status h3_writer_declare(h3_writer *w, const char *name, h3_dtype t, int rank,
                                         const int64_t *ne);

/** Writes the header; data follows. */
H3_NODISCARD h3_status h3_writer_begin(h3_writer *w);

/** The next bytes of the data section. */
H3_NODISCARD h3_status h3_writer_put(h3_writer *w, const void *data, size_t bytes);

/** Checks that all declared bytes came, puts the file in place and frees *w; on failure nothing is
 *  left behind. */
H3_NODISCARD h3_status h3_writer_commit(h3_writer **w);

/** Drops an unfinished file. Accepts NULL. */
void h3_writer_abort(h3_writer **w);

#endif
