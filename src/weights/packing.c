/** See packing.h. Endings: what mlx, bitsandbytes, AutoGPTQ, AutoAWQ and optimum-quanto write. */
#include "packing.h"

#include <stdlib.h>
#include <string.h>

#include "file.h"
#include "suffix.h"

#define INSTEAD \
    "take the weights as released (BF16), a ComfyUI file (FP8, INT8, NVFP4) or a GGUF instead"

static const struct {
    const char *ending, *by;
} packed[] = {
    {".quant_state.bitsandbytes__nf4", "bitsandbytes (NF4)"},
    {".quant_state.bitsandbytes__fp4", "bitsandbytes (FP4)"},
    {".SCB", "bitsandbytes (INT8)"},
    {".qzeros", "GPTQ or AWQ"},
    {".weight._data", "quanto"},
};

h3_status h3_packing_check(const h3_manifest *m, const char *path)
{
    for (int64_t i = 0; i < h3_manifest_count(m); i++) {
        const char *name = h3_manifest_at(m, i)->name;
        for (size_t k = 0; k < sizeof packed / sizeof *packed; k++)
            if (h3_ends_with(name, packed[k].ending))
                return h3_fail(H3_E_UNSUPPORTED,
                               "%s: tensor \"%s\": weights packed by %s are not read; " INSTEAD,
                               path, name, packed[k].by);
    }
    return H3_OK;
}

/* mlx packs the numbers of "x.weight" into words and keeps "x.scales" beside them. */
static bool is_mlx(const char *name, const json_t *header)
{
    static const char ending[] = ".weight";
    char *scales;
    bool is_there;

    if (!h3_ends_with(name, ending)) return false;
    scales = h3_strdupf("%.*s.scales", (int)(strlen(name) - strlen(ending)), name);
    is_there = json_object_get(header, scales) != NULL;
    free(scales);
    return is_there;
}

h3_status h3_packing_dtype(const char *path, const char *name, const char *dtype,
                           const json_t *header)
{
    static const char *const others[] = {"F4",  "F6_E2M3", "F6_E3M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ",
                                         "U16", "U32",     "U64",     "C64"};
    const char *hint = INSTEAD;
    bool is_known = false;

    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        is_known |= strcmp(dtype, others[i]) == 0;
    if (!is_known)
        return h3_fail(H3_E_FORMAT, "%s: tensor \"%s\": dtype \"%.40s\" is unknown", path, name,
                       dtype);
    if (is_mlx(name, header))
        return h3_fail(H3_E_UNSUPPORTED,
                       "%s: tensor \"%s\": dtype %s: weights packed by MLX are not read; " INSTEAD,
                       path, name, dtype);
    if (strcmp(dtype, "U16") == 0)
        hint = "if these are the bits of BF16 or F16, save the file again with that type";
    return h3_fail(H3_E_UNSUPPORTED, "%s: tensor \"%s\": dtype %s is not read; %s", path, name,
                   dtype, hint);
}
