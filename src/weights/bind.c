/** Spec tables: one row per tensor of a network; see checkpoint.h. */
#include <stdio.h>

#include "checkpoint.h"

static bool is_there(const h3_checkpoint *ck, const h3_spec *s, const char *name)
{
    char full[256 + 8];

    if (s->kind == H3_SPEC_VECTOR) return h3_ckpt_has(ck, name);
    snprintf(full, sizeof full, "%s.weight", name);
    return h3_ckpt_has(ck, full);
}

h3_status h3_bind(h3_checkpoint *ck, h3_dev *d, const h3_spec *spec, int n, const int64_t *dims,
                  void *base, int layer)
{
    for (int i = 0; i < n; i++) {
        const h3_spec *s = &spec[i];
        void *field = (char *)base + s->offset;
        char name[256];
        snprintf(name, sizeof name, s->name, layer);
        if (s->is_optional && !is_there(ck, s, name)) continue;
        if (s->kind == H3_SPEC_VECTOR)
            H3_TRY(h3_ckpt_vector(ck, d, field, name, dims[s->dim[0]]));
        else
            H3_TRY(
                h3_ckpt_matrix(ck, d, field, name, dims[s->dim[0]], dims[s->dim[1]], s->has_bias));
    }
    return H3_OK;
}
