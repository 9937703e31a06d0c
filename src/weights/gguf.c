#include "manifest_impl.h"
h3_status h3_gguf_read(h3_manifest *m, h3_file *f)
{
    uint32_t i;
    H3_TRY(h3_manifest_add_file(m, f, &i));
    return h3_fail(H3_E_UNSUPPORTED, "%s: magic", f->path);
}
