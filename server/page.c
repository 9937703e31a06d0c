/** See page.h. The files lie in server/page and docs; cmake/server.cmake links them in. */
#include "page.h"

#include <stdio.h>
#include <string.h>

#define FILE_OF(name) extern const char srv_file_##name[], srv_file_##name##_end[]
FILE_OF(html);
FILE_OF(css);
FILE_OF(js);
FILE_OF(svg);
FILE_OF(openapi);

typedef struct asset {
    const char *path, *type, *data, *end;
} asset;

static const asset assets[] = {
    {"/", "text/html; charset=utf-8", srv_file_html, srv_file_html_end},
    {"/app.css", "text/css; charset=utf-8", srv_file_css, srv_file_css_end},
    {"/app.js", "text/javascript; charset=utf-8", srv_file_js, srv_file_js_end},
    {"/icon.svg", "image/svg+xml", srv_file_svg, srv_file_svg_end},
    {"/openapi.json", "application/json", srv_file_openapi, srv_file_openapi_end},
};

/* Nothing from elsewhere, nothing inline, no frame around it. */
static const char policy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "media-src 'self' blob:; connect-src 'self'; form-action 'none'; base-uri 'none'; "
    "frame-ancestors 'none'";

enum MHD_Result srv_page(srv_req *r)
{
    const asset *f = &assets[0];
    const char *match = srv_header(r, "If-None-Match");
    struct MHD_Response *a;
    char tag[32];
    bool is_same;

    for (size_t i = 0; i < sizeof assets / sizeof *assets; i++)
        if (strcmp(assets[i].path, r->route->path) == 0) f = &assets[i];
    snprintf(tag, sizeof tag, "\"%016llx\"",
             (unsigned long long)srv_fnv(SRV_FNV, f->data, (size_t)(f->end - f->data)));
    is_same = match && strstr(match, tag);
    a = MHD_create_response_from_buffer(is_same ? 0 : (size_t)(f->end - f->data),
                                        (void *)(uintptr_t)f->data, MHD_RESPMEM_PERSISTENT);
    if (!a) return MHD_NO;
    srv_add_header(a, "Content-Type", f->type);
    srv_add_header(a, "Cache-Control", "no-cache");
    srv_add_header(a, "ETag", tag);
    srv_add_header(a, "Content-Security-Policy", policy);
    srv_add_header(a, "Referrer-Policy", "no-referrer");
    srv_add_header(a, "X-Frame-Options", "DENY");
    srv_add_header(a, "Cross-Origin-Opener-Policy", "same-origin");
    srv_add_header(a, "Permissions-Policy", "camera=(), microphone=(), geolocation=()");
    return srv_answer(r, is_same ? 304 : 200, a);
}
