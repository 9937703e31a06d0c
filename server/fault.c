/** See fault.h. */
#include "fault.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Values of the request end up in sentences: cut text must stay UTF-8, or no JSON comes of it. */
static void mend_utf8(char *s)
{
    size_t n = strlen(s);
    json_t *test = json_string(s);

    while (!test && n) {
        s[--n] = '\0';
        test = json_string(s);
    }
    json_decref(test);
}

bool srv_fault_set(srv_fault *f, int http, const char *code, const char *param, const char *fmt,
                   ...)
{
    va_list ap;

    if (f->http) return false;
    f->http = http;
    f->code = code;
    snprintf(f->param, sizeof f->param, "%s", param ? param : "");
    va_start(ap, fmt);
    vsnprintf(f->text, sizeof f->text, fmt, ap);
    va_end(ap);
    mend_utf8(f->text);
    mend_utf8(f->param);
    return false;
}
