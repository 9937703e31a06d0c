/** See report.h. */
#include "report.h"

#include <stdarg.h>
#include <stdio.h>

#include "progress.h"

/* Documented in h3av help and the man page. */
int report_status(h3_status st)
{
    switch (st) {
    case H3_OK:
        return 0;
    case H3_E_ARG:
        return 2;
    case H3_E_IO:
        return 3;
    case H3_E_FORMAT:
    case H3_E_SHAPE:
        return 4;
    case H3_E_MISSING:
        return 5;
    case H3_E_NOMEM:
        return 6;
    case H3_E_UNSUPPORTED:
        return 7;
    case H3_E_DEVICE:
        return 8;
    case H3_E_NUMERIC:
        return 10;
    case H3_E_CANCELLED:
        return 130;
    case H3_E_INTERNAL:
        return 70;
    }
    return 70;
}

static char *sink; // where sentences go instead of standard error
static size_t sink_bytes;

void report_into(char *out, size_t cap)
{
    sink = out;
    sink_bytes = cap;
}

int report_said(int status, const char *fmt, ...)
{
    char text[1024];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (sink)
        snprintf(sink, sink_bytes, "%s", text);
    else
        fprintf(stderr, "h3av: %s\n", text);
    return status;
}

void report_event(const char *code, const char *unit, long number, const char *text)
{
    printf("{\"event\":\"error\"");
    if (unit) printf(",\"%s\":%ld", unit, number);
    printf(",\"code\":\"%s\",\"text\":", code);
    json_text(text);
    printf("}\n");
    fflush(stdout);
}

int report_failed(const cli *c, h3_status st)
{
    if (c->is_json) report_event(h3_status_name(st), NULL, 0, h3_error());
    fprintf(stderr, "h3av: %s\n", h3_error());
    return report_status(st);
}
