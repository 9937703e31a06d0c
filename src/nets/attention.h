/**
 * Self-attention's view of a fused product: q, k and v as three strided tensors over one buffer.
 *
 * Files order the rows of a fused qkv matrix in two ways of equal shape (see
 * h3_weight.interleaved):
 *
 *   interleaved   (head, {q, k, v}, channel)   head stride 3 D, offsets 0, D, 2 D
 *   stacked       ({q, k, v}, head, channel)   head stride D,   offsets 0, H D, 2 H D
 *
 * Nothing is moved: operations take any outer strides.
 */
#ifndef H3_NETS_ATTENTION_H
#define H3_NETS_ATTENTION_H

#include "comm.h"

typedef struct h3_qkv {
    h3_tensor q, k, v; ///< [S, H, D] each, views of the packed product
} h3_qkv;

/** Splits packed [S, 3 * n_heads * head_dim] (dense). */
h3_qkv h3_attention_split(h3_tensor packed, int64_t n_heads, int64_t head_dim, bool interleaved);

/** H3_E_UNSUPPORTED when n_heads do not divide among the ranks; says which counts do. */
H3_NODISCARD h3_status h3_attention_check(const h3_comm *ranks, int64_t n_heads);

/* ---- attention of packed rows, over ranks ---- */

enum {
    H3_RELAY_BANDS = 8,       ///< of a rank's rows
    H3_RELAY_CHUNKS = 8,      ///< of a rank's heads
    H3_RELAY_WORTH = 16 << 20 ///< bytes to one other rank from which on pieces pay
};

/**
 * o = softmax(q k^T / sqrt(D)) v inside each document, for q, k, v that are made band by band.
 *
 * Over ranks the rows at hand are this rank's share of S (h3_comm_first). Sequence parallelism as
 * in DeepSpeed Ulysses (Jacobs et al. 2023): an exchange turns "some rows of all heads" into "all
 * rows of some heads", attention runs as it would on one rank, a second exchange turns its result
 * back. Both go in pieces where the ranks' link can work beside the device:
 *
 *   compute   q,k,v of band 0 | of band 1 ...  | chunk 0 of our heads | chunk 1 ...
 *   link                      | band 0         | band 1, chunk 0, 1   | chunk 0 back | chunk 1 back
 *
 * Pieces change nothing in any sum: rows do not see each other before attention, heads not in it.
 * Where ranks have windows (h3_comm_window) rows go from where they were made to where they are
 * read; elsewhere they are packed into messages.
 *
 *   h3_relay_open(&z, ...)
 *   for each band: q, k, v of rows [first, first + n) into z.packed, normed and rotated;
 *                  h3_relay_send(&z, band)
 *   h3_relay_attend(&z, ...)            then z.o is there
 *   h3_relay_close(&z)                  z.o stays, the rest goes
 *
 * With one rank there is one band, and nothing is sent. Heads must divide among ranks
 * (h3_attention_check). After a failure on the way: h3_comm_abandon.
 */
typedef struct h3_relay {
    h3_dev *d;
    h3_comm *c;
    h3_tensor packed; ///< [own rows, 3 H D] q, k and v
    h3_tensor o;      ///< [own rows, H D] result
    bool is_interleaved;
    bool is_direct;   ///< through windows: all, o
    bool is_in_place; ///< all rows lie as ours do: nothing is copied here
    h3_dtype dtype;
    int me, P;
    int n_bands, n_chunks;
    int64_t S, Hp, D;                     ///< Hp: heads of a rank
    int64_t first[H3_COMM_MAX + 1];       ///< row of the sequence where each rank's begin
    int64_t head[H3_RELAY_CHUNKS + 1];    ///< head, among a rank's, where each chunk begins
    h3_tensor all[H3_RELAY_CHUNKS];       ///< [S, 3 n D] of our heads, as `packed`
    h3_tensor out[H3_RELAY_CHUNKS];       ///< [own rows x other ranks, 3 n D] of theirs: messages
    h3_tensor mine[H3_RELAY_CHUNKS];      ///< [S, n D] attention of our heads
    h3_tensor in[H3_RELAY_CHUNKS];        ///< [own rows x other ranks, n D] of theirs, in `out`
    h3_tensor every, every_o;             ///< in place: [S, 3 H D] with `packed`, [S, H D] with o
    size_t all_at[H3_RELAY_CHUNKS], o_at; ///< in a window
    h3_travel out_of[H3_RELAY_BANDS];     ///< all chunks of a band but the last
    h3_travel last_out[H3_RELAY_CHUNKS];  ///< each chunk of the last band
    h3_travel back[H3_RELAY_CHUNKS];
    size_t mark; ///< of the scratch arena, behind o
} h3_relay;

/** What a relay is for: n_rows of the whole sequence (S), H heads of D channels. */
typedef struct h3_relay_shape {
    h3_dtype dtype;
    bool is_interleaved;
    int64_t n_rows, n_heads, head_dim;
} h3_relay_shape;

/** Takes its buffers from the scratch arena and from the window. */
H3_NODISCARD h3_status h3_relay_open(h3_relay *z, h3_dev *d, h3_comm *ranks,
                                     const h3_relay_shape *shape);
/** Rows of band b (below z->n_bands) among ours. */
void h3_relay_band(const h3_relay *z, int b, int64_t *first, int64_t *n);
/** Band b of `packed` is ready. */
H3_NODISCARD h3_status h3_relay_send(h3_relay *z, int b);
/** cu [n_documents + 1] on the host, cu[0] = 0, cu[n_documents] = S. */
H3_NODISCARD h3_status h3_relay_attend(h3_relay *z, const int32_t *cu, int n_documents);
void h3_relay_close(h3_relay *z);

#endif
