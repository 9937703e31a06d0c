/** Views of a packed qkv product, and attention over them; see attention.h. */
#include "attention.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "size.h"

static h3_tensor heads_at(h3_tensor packed, int64_t first, int64_t n_heads, int64_t head_dim,
                          int64_t head_stride)
{
    h3_tensor t = h3_slice(packed, 1, first, 1);

    t.rank = 3;
    t.ne[1] = n_heads;
    t.ne[2] = head_dim;
    t.st[1] = head_stride;
    t.st[2] = 1;
    return t;
}

h3_qkv h3_attention_split(h3_tensor packed, int64_t n_heads, int64_t head_dim, bool interleaved)
{
    const int64_t head_stride = interleaved ? 3 * head_dim : head_dim;
    const int64_t next = interleaved ? head_dim : n_heads * head_dim; // from q to k, from k to v

    assert(packed.rank == 2 && packed.ne[1] == 3 * n_heads * head_dim);
    return (h3_qkv){
        .q = heads_at(packed, 0, n_heads, head_dim, head_stride),
        .k = heads_at(packed, next, n_heads, head_dim, head_stride),
        .v = heads_at(packed, 2 * next, n_heads, head_dim, head_stride),
    };
}

static h3_status attend(h3_dev *d, h3_tensor o, const h3_qkv *p, const int32_t *cu, int n_documents)
{
    const float scale = (float)(1.0 / sqrt((double)p->q.ne[2])); // the head, not its rotated part

    return d->ops->attention(d, o, p->q, p->k, p->v, scale, cu, n_documents, false);
}

/* ------------------------------------------------------------------------------- over ranks */

static int64_t rows_of(const h3_relay *z, int r)
{
    return z->first[r + 1] - z->first[r];
}

/* Where rows of band b of rank r begin in the whole sequence; b == n_bands: where its rows end.
 * Long bands are whole tiles of a product. */
static int64_t band_at(const h3_relay *z, int r, int b)
{
    enum { TILE = 128 };
    const int64_t rows = rows_of(z, r), at = rows * b / z->n_bands;
    const bool is_long = rows >= 8 * TILE * z->n_bands;

    return z->first[r] + (is_long && b < z->n_bands ? at / TILE * TILE : at);
}

void h3_relay_band(const h3_relay *z, int b, int64_t *first, int64_t *n)
{
    *first = band_at(z, z->me, b) - z->first[z->me];
    *n = band_at(z, z->me, b + 1) - z->first[z->me] - *first;
}

static int64_t heads_of(const h3_relay *z, int chunk)
{
    return z->head[chunk + 1] - z->head[chunk];
}

/* Rows [from, from + n) of a dense [., cols] buffer as a message. */
static h3_message part(h3_tensor t, int peer, int64_t from, int64_t n)
{
    const size_t row = (size_t)t.ne[1] * h3_dtype_bytes((h3_dtype)t.dtype);

    return (h3_message){peer, h3_slice(t, 0, from, n).data, (size_t)n * row};
}

/* What goes to and comes from others at once: messages, or rows for their windows. */
typedef struct bundle {
    h3_put put[3 * H3_COMM_LOCAL * H3_RELAY_CHUNKS];
    int n_put;
    h3_message send[H3_COMM_MAX * H3_RELAY_CHUNKS], recv[H3_COMM_MAX * H3_RELAY_CHUNKS];
    int n_send, n_recv;
} bundle;

/* Both sides leave empty ones out, and name the messages between two ranks in one order. */
static void add(bundle *m, const h3_message *send, const h3_message *recv)
{
    if (send->bytes) m->send[m->n_send++] = *send;
    if (recv->bytes) m->recv[m->n_recv++] = *recv;
}

/* Place of rank r among those that are not us. */
static int64_t other(const h3_relay *z, int r)
{
    return r < z->me ? r : r - 1;
}

/* q, k and v of heads [at, at + n) of some packed rows into `to` [rows, 3 n D], packed alike. */
static h3_status collect_heads(const h3_relay *z, h3_tensor to, h3_tensor packed, int64_t at,
                               int64_t n)
{
    const h3_ops *op = z->d->ops;

    if (z->is_interleaved) // one piece
        return op->copy(z->d, to, h3_slice(packed, 1, 3 * z->D * at, 3 * z->D * n));
    const h3_qkv x = h3_attention_split(packed, z->Hp * z->P, z->D, false);
    const h3_qkv y = h3_attention_split(to, n, z->D, false);
    H3_TRY(op->copy(z->d, y.q, h3_slice(x.q, 1, at, n)));
    H3_TRY(op->copy(z->d, y.k, h3_slice(x.k, 1, at, n)));
    return op->copy(z->d, y.v, h3_slice(x.v, 1, at, n));
}

/* Columns [from, from + cols) of our rows [at, at + n) of t, into a window of rank r. */
static void add_put(bundle *m, int r, h3_tensor t, int64_t at, int64_t n, int64_t from,
                    int64_t cols, size_t to, int64_t pitch)
{
    const size_t size = h3_dtype_bytes((h3_dtype)t.dtype);

    if (n > 0)
        m->put[m->n_put++] = (h3_put){.peer = r,
                                      .at = to,
                                      .pitch = (size_t)pitch * size,
                                      .src = h3_slice(h3_slice(t, 0, at, n), 1, from, cols).data,
                                      .src_pitch = (size_t)t.st[0] * size,
                                      .width = (size_t)cols * size,
                                      .rows = (size_t)n};
}

/* q, k and v of heads of `chunk` of rank r, from rows [at, at + n) of ours to where it reads them:
 * packed with the heads of the chunk alone, or in place, with all heads as here. */
static void put_chunk(const h3_relay *z, bundle *m, int r, int chunk, int64_t at, int64_t n)
{
    const int64_t heads = heads_of(z, chunk), D = z->D, H = z->Hp * z->P;
    const int64_t from = r * z->Hp + z->head[chunk]; // head
    const int64_t pitch = 3 * D * (z->is_in_place ? H : heads), first = z->is_in_place ? from : 0;
    const size_t size = h3_dtype_bytes(z->dtype);
    const size_t to = z->all_at[chunk] + (size_t)((z->first[z->me] + at) * pitch) * size;

    if (z->is_interleaved) { // one piece
        add_put(m, r, z->packed, at, n, 3 * D * from, 3 * D * heads,
                to + (size_t)(3 * D * first) * size, pitch);
        return;
    }
    for (int64_t i = 0; i < 3; i++)
        add_put(m, r, z->packed, at, n, (i * H + from) * D, heads * D,
                to + (size_t)(i * pitch / 3 + first * D) * size, pitch);
}

static h3_status send_off(const h3_relay *z, bundle *m, h3_travel *t)
{
    const h3_status st = z->is_direct
                             ? h3_comm_put(z->c, z->d, m->put, m->n_put, t)
                             : h3_comm_begin(z->c, z->d, m->send, m->n_send, m->recv, m->n_recv, t);

    m->n_send = m->n_recv = m->n_put = 0;
    return st;
}

/* Heads of `chunk` of all ranks, from rows [at, at + n) of ours: our own ones to where they are
 * read, those of others to where they are sent from. */
static h3_status collect_chunk(const h3_relay *z, int chunk, int64_t at, int64_t n, bundle *m,
                               int band)
{
    const h3_tensor rows = h3_slice(z->packed, 0, at, n), all = z->all[chunk];
    const int64_t own = rows_of(z, z->me), heads = heads_of(z, chunk);

    for (int i = 0; i < z->P; i++) { // starting with the neighbour, ourselves last
        const int to = (z->me + i + 1) % z->P, from = (z->me + z->P - i - 1) % z->P;
        if (z->is_direct && to != z->me) {
            put_chunk(z, m, to, chunk, at, n);
            continue;
        }
        if (z->is_in_place) continue;
        const int64_t slot = to == z->me ? z->first[to] + at : other(z, to) * own + at;
        const h3_tensor place = to == z->me ? all : z->out[chunk];
        H3_TRY(collect_heads(z, h3_slice(place, 0, slot, n), rows, to * z->Hp + z->head[chunk],
                             heads));
        if (to == z->me) continue;
        const int64_t first = band_at(z, from, band);
        const h3_message send = part(place, to, slot, n);
        const h3_message recv = part(all, from, first, band_at(z, from, band + 1) - first);
        add(m, &send, &recv);
    }
    return H3_OK;
}

h3_status h3_relay_send(h3_relay *z, int b)
{
    const bool is_last = b == z->n_bands - 1;
    bundle m;
    int64_t at, n;

    if (z->P == 1) return H3_OK;
    m.n_send = m.n_recv = m.n_put = 0;
    h3_relay_band(z, b, &at, &n);
    for (int chunk = 0; chunk < z->n_chunks; chunk++) {
        H3_TRY(collect_chunk(z, chunk, at, n, &m, b));
        if (!is_last && chunk < z->n_chunks - 1) continue;
        H3_TRY(send_off(z, &m, is_last ? &z->last_out[chunk] : &z->out_of[b]));
    }
    return H3_OK;
}

/* Our heads of a chunk for the rows of others, on their way back. */
static h3_status send_back(h3_relay *z, int chunk)
{
    const int64_t own = rows_of(z, z->me), H = z->Hp * z->P, cols = heads_of(z, chunk) * z->D;
    const int64_t column = (z->me * z->Hp + z->head[chunk]) * z->D;
    const size_t size = h3_dtype_bytes(z->dtype), to_o = z->o_at + (size_t)column * size;
    bundle m;

    m.n_send = m.n_recv = m.n_put = 0;
    for (int i = 1; i < z->P; i++) {
        const int to = (z->me + i) % z->P, from = (z->me + z->P - i) % z->P;
        if (z->is_in_place) {
            add_put(&m, to, z->every_o, z->first[to], rows_of(z, to), column, cols,
                    to_o + (size_t)(z->first[to] * H * z->D) * size, H * z->D);
            continue;
        }
        if (z->is_direct) {
            add_put(&m, to, z->mine[chunk], z->first[to], rows_of(z, to), 0, cols, to_o, H * z->D);
            continue;
        }
        const h3_message send = part(z->mine[chunk], to, z->first[to], rows_of(z, to));
        const h3_message recv = part(z->in[chunk], from, other(z, from) * own, own);
        add(&m, &send, &recv);
    }
    return send_off(z, &m, &z->back[chunk]);
}

/* Heads of a chunk of rank r, which `from` [own rows, heads, D] has, into their place in o. */
static h3_status place_heads(const h3_relay *z, h3_tensor o, int chunk, int r, h3_tensor from)
{
    const int64_t n = heads_of(z, chunk);

    return z->d->ops->copy(z->d, h3_slice(o, 1, r * z->Hp + z->head[chunk], n),
                           h3_view_3d(from, from.ne[0], n, z->D));
}

static h3_status attend_chunk(h3_relay *z, h3_tensor o, int chunk, const int32_t *cu,
                              int n_documents)
{
    const int64_t n = heads_of(z, chunk), H = z->Hp * z->P, at = z->me * z->Hp + z->head[chunk];

    if (z->is_in_place) {
        h3_qkv x = h3_attention_split(z->every, H, z->D, z->is_interleaved);
        x = (h3_qkv){h3_slice(x.q, 1, at, n), h3_slice(x.k, 1, at, n), h3_slice(x.v, 1, at, n)};
        H3_TRY(attend(z->d, h3_slice(h3_view_3d(z->every_o, z->S, H, z->D), 1, at, n), &x, cu,
                      n_documents));
        return send_back(z, chunk);
    }
    const h3_qkv own = h3_attention_split(z->all[chunk], n, z->D, z->is_interleaved);
    const h3_tensor mine = z->mine[chunk];
    H3_TRY(attend(z->d, h3_view_3d(mine, z->S, n, z->D), &own, cu, n_documents));
    H3_TRY(send_back(z, chunk));
    return place_heads(z, o, chunk, z->me, h3_slice(mine, 0, z->first[z->me], rows_of(z, z->me)));
}

static h3_status attend_over_ranks(h3_relay *z, h3_tensor o, const int32_t *cu, int n_documents)
{
    const int64_t own = rows_of(z, z->me);

    for (int b = 0; b < z->n_bands - 1; b++)
        H3_TRY(h3_comm_finish(z->c, z->d, &z->out_of[b]));
    for (int chunk = 0; chunk < z->n_chunks; chunk++) {
        H3_TRY(h3_comm_finish(z->c, z->d, &z->last_out[chunk]));
        H3_TRY(attend_chunk(z, o, chunk, cu, n_documents));
    }
    for (int chunk = 0; chunk < z->n_chunks; chunk++) {
        H3_TRY(h3_comm_finish(z->c, z->d, &z->back[chunk]));
        for (int r = 0; r < z->P && !z->is_direct; r++)
            if (r != z->me)
                H3_TRY(
                    place_heads(z, o, chunk, r, h3_slice(z->in[chunk], 0, other(z, r) * own, own)));
    }
    return H3_OK;
}

/* Tiles of 128 rows of `heads` heads, a multiprocessor each: how many rounds of them. */
static int64_t rounds(const h3_relay *z, int64_t heads)
{
    const int64_t units = z->c->n_units, tiles = heads * ((z->S + 127) / 128);

    return units > 0 ? (tiles + units - 1) / units : 0;
}

/* Even shares, shifted where the device then needs fewer rounds for all of them. */
static void choose_heads(h3_relay *z)
{
    int64_t least = INT64_MAX, best = 0, last = 0;

    for (int i = 0; i <= z->n_chunks; i++)
        z->head[i] = z->Hp * i / z->n_chunks;
    if (z->c->n_units == 0 || z->n_chunks < 2 || z->n_chunks > 3) return;
    /* The first takes a, the last b, and a third what lies between. */
    for (int64_t a = 1; a < z->Hp; a++)
        for (int64_t b = 1; b <= z->Hp - a; b++) {
            const int64_t between = z->Hp - a - b, uneven = llabs(a - b) + llabs(a - between);
            if ((z->n_chunks == 2) != (between == 0)) continue;
            const int64_t cost = 64 * (rounds(z, a) + rounds(z, b) + rounds(z, between)) +
                                 (z->n_chunks == 2 ? (a > b) : uneven);
            if (cost < least) least = cost, best = a, last = b;
        }
    z->head[1] = best;
    z->head[z->n_chunks - 1] = z->Hp - last;
}

/* Bands of rows and chunks of heads: what they hide must be worth their launches and the smaller
 * products. Messages between GPUs are carried by their multiprocessors: products beside them lose
 * more than is hidden (docs/scaling.md). H3_OVERLAP=BANDS,CHUNKS or off is for measurements. */
static void choose_pieces(h3_relay *z, int64_t row_bytes)
{
    const char *wish = getenv("H3_OVERLAP");
    const bool is_device = z->d->mem == H3_DEVICE;
    const bool can = is_device ? z->is_direct : !z->is_direct && h3_comm_can_travel(z->c, z->d);
    int bands = 1, chunks = 1;

    if (z->d->is_plan) // memory for whatever is chosen
        chunks = H3_RELAY_CHUNKS;
    else if (!wish && can && z->S / z->P * row_bytes / z->P >= H3_RELAY_WORTH)
        bands = 2, chunks = is_device ? 3 : 2;
    else if (wish && sscanf(wish, "%d,%d", &bands, &chunks) != 2)
        bands = chunks = 1;
    z->n_bands = bands < 1 ? 1 : bands < H3_RELAY_BANDS ? bands : H3_RELAY_BANDS;
    z->n_chunks = chunks < 1 ? 1 : chunks < H3_RELAY_CHUNKS ? chunks : H3_RELAY_CHUNKS;
    if (z->n_chunks > z->Hp) z->n_chunks = (int)z->Hp;
}

static h3_tensor in_window(const h3_relay *z, void *base, size_t at, int64_t rows, int64_t cols)
{
    h3_tensor t = h3_tensor_2d((unsigned char *)base + at, z->dtype, rows, cols);

    t.mem = z->d->mem;
    return t;
}

enum { WINDOW_ALIGN = 1024 };

/* Two ranks have no more rows of others than of their own, so that all can lie in one table: the
 * product writes our rows into it and attention its result, as they are read. */
static void carve_in_place(h3_relay *z, void *base)
{
    const int64_t cols = z->Hp * z->P * z->D, own = rows_of(z, z->me);

    z->every = in_window(z, base, 0, z->S, 3 * cols);
    z->every_o = in_window(z, base, z->o_at, z->S, cols);
    z->packed = h3_slice(z->every, 0, z->first[z->me], own);
    z->o = h3_slice(z->every_o, 0, z->first[z->me], own);
}

/* The same places in every rank's window: all chunks of all, then o of the rank with most rows. */
static h3_status carve_window(h3_relay *z)
{
    const size_t size = h3_dtype_bytes(z->dtype);
    const int64_t H = z->Hp * z->P, most = z->is_in_place ? z->S : (z->S + z->P - 1) / z->P;
    size_t at = 0;
    void *base = (void *)WINDOW_ALIGN; // of a dry run: never touched

    for (int i = 0; i < z->n_chunks && !z->is_in_place; i++) {
        z->all_at[i] = at;
        at += h3_align_up((size_t)(z->S * 3 * heads_of(z, i) * z->D) * size, WINDOW_ALIGN);
    }
    if (z->is_in_place) at = h3_align_up((size_t)(z->S * 3 * H * z->D) * size, WINDOW_ALIGN);
    z->o_at = at;
    at += h3_align_up((size_t)(most * H * z->D) * size, WINDOW_ALIGN);
    if (z->d->is_plan && z->d->window < at) z->d->window = at;
    if (!z->d->is_plan) H3_TRY(h3_comm_window(z->c, z->d, at, &base));
    if (z->is_in_place) {
        carve_in_place(z, base);
        return H3_OK;
    }
    for (int i = 0; i < z->n_chunks; i++)
        z->all[i] = in_window(z, base, z->all_at[i], z->S, 3 * heads_of(z, i) * z->D);
    z->o = in_window(z, base, z->o_at, rows_of(z, z->me), H * z->D);
    return H3_OK;
}

static void carve(h3_relay *z)
{
    const h3_dtype type = z->dtype;
    const int64_t others = rows_of(z, z->me) * (z->P - 1);

    for (int i = 0; i < z->n_chunks; i++) {
        const int64_t cols = heads_of(z, i) * z->D;
        z->mine[i] = h3_scratch_2d(z->d, type, z->S, cols);
        if (z->is_direct) continue;
        z->all[i] = h3_scratch_2d(z->d, type, z->S, 3 * cols);
        z->out[i] = h3_scratch_2d(z->d, type, others, 3 * cols);
        z->in[i] = z->out[i]; // what was sent from there has arrived by then
        z->in[i].ne[1] = z->in[i].st[0] = cols;
    }
}

/* ----------------------------------------------------------------------------------- doors */

h3_status h3_attention_check(const h3_comm *ranks, int64_t n_heads)
{
    char list[160] = "";
    size_t n = 0;

    if (n_heads % h3_comm_size(ranks) == 0) return H3_OK;
    for (int64_t p = 1; p <= n_heads && p <= H3_COMM_MAX && n + 16 < sizeof list; p++)
        if (n_heads % p == 0)
            n += (size_t)snprintf(list + n, sizeof list - n, "%s%lld", n ? ", " : "", (long long)p);
    return h3_fail(H3_E_UNSUPPORTED,
                   "%lld attention heads do not divide among %d ranks: use one of %s",
                   (long long)n_heads, h3_comm_size(ranks), list);
}

/* How the rows and heads lie over the ranks. */
static void share_out(h3_relay *z, h3_dev *d, h3_comm *ranks, const h3_relay_shape *s)
{
    memset(z, 0, sizeof *z);
    z->d = d;
    z->c = ranks;
    z->me = h3_comm_rank(ranks);
    z->P = h3_comm_size(ranks);
    z->S = s->n_rows;
    z->Hp = s->n_heads / z->P;
    z->D = s->head_dim;
    z->is_interleaved = s->is_interleaved;
    z->dtype = s->dtype;
    z->is_direct = h3_comm_has_window(ranks, d);
    z->is_in_place = z->is_direct && z->P == 2;
    z->n_bands = z->n_chunks = 1;
    for (int r = 0; r <= z->P; r++)
        z->first[r] = h3_comm_first(ranks, s->n_rows, r);
    assert(z->Hp * z->P == s->n_heads);
}

h3_status h3_relay_open(h3_relay *z, h3_dev *d, h3_comm *ranks, const h3_relay_shape *s)
{
    const int64_t cols = s->n_heads * s->head_dim;

    share_out(z, d, ranks, s);
    const int64_t own = rows_of(z, z->me);
    if (!z->is_direct) z->o = h3_scratch_2d(d, s->dtype, own, cols);
    z->mark = h3_arena_mark(&d->scratch);
    if (!z->is_in_place) z->packed = h3_scratch_2d(d, s->dtype, own, 3 * cols);
    if (z->P > 1) {
        choose_pieces(z, 3 * cols * (int64_t)h3_dtype_bytes(s->dtype));
        choose_heads(z);
        if (z->is_direct) H3_TRY(carve_window(z));
        if (!z->is_in_place) carve(z);
    }
    return h3_scratch_check(d, "attention");
}

h3_status h3_relay_attend(h3_relay *z, const int32_t *cu, int n_documents)
{
    const int64_t H = z->Hp * z->P;
    const h3_tensor heads = h3_view_3d(z->o, z->o.ne[0], H, z->D);
    const h3_qkv all = h3_attention_split(z->packed, H, z->D, z->is_interleaved);

    assert(cu[n_documents] == z->S);
    if (z->P > 1) return attend_over_ranks(z, heads, cu, n_documents);
    return attend(z->d, heads, &all, cu, n_documents);
}

void h3_relay_close(h3_relay *z)
{
    h3_arena_release(&z->d->scratch, z->mark);
}
