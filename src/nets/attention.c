/** Views of a packed qkv product, and attention over them; see attention.h. */
#include "attention.h"

#include <assert.h>
#include <math.h>

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

h3_status h3_attention_self(h3_dev *d, h3_tensor o, const h3_qkv *qkv, const int32_t *cu,
                            int n_documents)
{
    const int64_t S = qkv->q.ne[0], H = qkv->q.ne[1], D = qkv->q.ne[2];
    const float scale = (float)(1.0 / sqrt((double)D)); // the whole head, not its rotated part

    return d->ops->attention(d, h3_view_3d(o, S, H, D), qkv->q, qkv->k, qkv->v, scale, cu,
                             n_documents, false);
}
