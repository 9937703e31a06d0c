/**
 * Numbers as text; see number.h. An application that calls setlocale (every desktop toolkit does)
 * may have made the comma a decimal mark for the whole process. The C locale is taken for the
 * calling thread and the length of a call; where none can be made, the locale stays as it is.
 */
#include "number.h"

#include <locale.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static locale_t c_locale;

static void make_locale(void)
{
    c_locale = newlocale(LC_NUMERIC_MASK, "C", (locale_t)0);
}

static locale_t enter(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    (void)pthread_once(&once, make_locale);
    return uselocale(c_locale); // of none it only tells the present one
}

double h3_number_read(const char *text, char **end)
{
    const locale_t before = enter();
    const double v = strtod(text, end);

    (void)uselocale(before);
    return v;
}

int h3_number_write(char *out, size_t n, const char *format, double v)
{
    const locale_t before = enter();
    const int written = snprintf(out, n, format, v);

    (void)uselocale(before);
    return written;
}
