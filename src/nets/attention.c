/** Views of a packed qkv product, and attention over them; see attention.h. */
#include "attention.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>

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

/* How S rows of H heads lie over P ranks: rank r owns rows [first[r], first[r + 1]) outside
 * attention and heads [r Hp, (r + 1) Hp) inside it. */
typedef struct shares {
    int me, P;
    int64_t S, Hp, D;
    int64_t first[H3_COMM_MAX + 1];
} shares;

static shares share_out(const h3_comm *c, int64_t S, int64_t H, int64_t D)
{
    shares z = {.me = c->rank, .P = c->size, .S = S, .Hp = H / c->size, .D = D};

    for (int r = 0; r <= z.P; r++)
        z.first[r] = h3_comm_first(c, S, r);
    return z;
}

static int64_t rows_of(const shares *z, int r)
{
    return z->first[r + 1] - z->first[r];
}

/* Rows [from, from + n) of a dense [., cols] buffer as a message. */
static h3_message part(h3_tensor t, int peer, int64_t from, int64_t n)
{
    const size_t row = (size_t)t.ne[1] * h3_dtype_bytes((h3_dtype)t.dtype);

    return (h3_message){peer, h3_slice(t, 0, from, n).data, (size_t)n * row};
}

/* q, k and v of the heads of rank r, from our rows into `to` [rows, 3 Hp D]: q, then k, then v. */
static h3_status collect_heads(h3_dev *d, const shares *z, h3_tensor to, const h3_qkv *p, int r)
{
    const h3_qkv y = h3_attention_split(to, z->Hp, z->D, false);
    const int64_t at = r * z->Hp;

    H3_TRY(d->ops->copy(d, y.q, h3_slice(p->q, 1, at, z->Hp)));
    H3_TRY(d->ops->copy(d, y.k, h3_slice(p->k, 1, at, z->Hp)));
    return d->ops->copy(d, y.v, h3_slice(p->v, 1, at, z->Hp));
}

/* all [S, 3 Hp D]: every row of our heads. Rows of a rank stand together and ranks follow one
 * another, so what arrives is in the order of the sequence and needs no unpacking. */
static h3_status rows_to_heads(h3_dev *d, h3_comm *c, const shares *z, h3_tensor all,
                               const h3_qkv *p)
{
    const int64_t n = rows_of(z, z->me);
    const size_t mark = h3_arena_mark(&d->scratch);
    h3_tensor out = h3_scratch_2d(d, (h3_dtype)all.dtype, n * z->P, all.ne[1]);
    h3_message send[H3_COMM_MAX], recv[H3_COMM_MAX];
    h3_status st = h3_scratch_check(d, "rows for other ranks");

    for (int r = 0; st == H3_OK && r < z->P; r++) {
        const h3_tensor to =
            r == z->me ? h3_slice(all, 0, z->first[r], n) : h3_slice(out, 0, n * r, n);
        send[r] = part(out, r, n * r, n);
        recv[r] = part(all, r, z->first[r], rows_of(z, r));
        st = collect_heads(d, z, to, p, r);
    }
    if (st == H3_OK) st = h3_comm_all_to_all(c, d, recv, send);
    h3_arena_release(&d->scratch, mark);
    return st;
}

/* The way back: mine [S, Hp D] of our heads to o [rows, H, D] of our rows. */
static h3_status heads_to_rows(h3_dev *d, h3_comm *c, const shares *z, h3_tensor o, h3_tensor mine)
{
    const int64_t n = rows_of(z, z->me);
    const size_t mark = h3_arena_mark(&d->scratch);
    h3_tensor in = h3_scratch_2d(d, (h3_dtype)mine.dtype, n * z->P, mine.ne[1]);
    h3_message send[H3_COMM_MAX], recv[H3_COMM_MAX];
    h3_status st = h3_scratch_check(d, "heads of other ranks");

    for (int r = 0; st == H3_OK && r < z->P; r++) {
        send[r] = part(mine, r, z->first[r], rows_of(z, r));
        recv[r] = part(in, r, n * r, n);
    }
    if (st == H3_OK) st = h3_comm_all_to_all(c, d, recv, send);
    for (int r = 0; st == H3_OK && r < z->P; r++) {
        const h3_tensor from =
            r == z->me ? h3_slice(mine, 0, z->first[r], n) : h3_slice(in, 0, n * r, n);
        st = d->ops->copy(d, h3_slice(o, 1, r * z->Hp, z->Hp), h3_view_3d(from, n, z->Hp, z->D));
    }
    h3_arena_release(&d->scratch, mark);
    return st;
}

static h3_status attend_over_ranks(h3_dev *d, h3_comm *c, h3_tensor o, const h3_qkv *p,
                                   const int32_t *cu, int n_documents)
{
    const shares z = share_out(c, cu[n_documents], p->q.ne[1], p->q.ne[2]);
    const h3_dtype type = (h3_dtype)o.dtype;
    const size_t mark = h3_arena_mark(&d->scratch);
    h3_tensor all = h3_scratch_2d(d, type, z.S, 3 * z.Hp * z.D);

    H3_TRY(h3_scratch_check(d, "attention over ranks"));
    assert(o.ne[0] == rows_of(&z, z.me) && z.Hp * z.P == p->q.ne[1]);
    H3_TRY(rows_to_heads(d, c, &z, all, p));
    h3_tensor mine = h3_scratch_2d(d, type, z.S, z.Hp * z.D); // where rows_to_heads packed
    H3_TRY(h3_scratch_check(d, "attention over ranks"));
    const h3_qkv own = h3_attention_split(all, z.Hp, z.D, false);
    H3_TRY(attend(d, h3_view_3d(mine, z.S, z.Hp, z.D), &own, cu, n_documents));
    H3_TRY(heads_to_rows(d, c, &z, o, mine));
    h3_arena_release(&d->scratch, mark);
    return H3_OK;
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

h3_status h3_attention_self(h3_dev *d, h3_comm *ranks, h3_tensor o, const h3_qkv *qkv,
                            const int32_t *cu, int n_documents)
{
    const h3_tensor heads = h3_view_3d(o, qkv->q.ne[0], qkv->q.ne[1], qkv->q.ne[2]);

    if (h3_comm_size(ranks) > 1) return attend_over_ranks(d, ranks, heads, qkv, cu, n_documents);
    return attend(d, heads, qkv, cu, n_documents);
}
