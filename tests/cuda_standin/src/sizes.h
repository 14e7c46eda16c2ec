/* Functions that say how much working memory another one needs: they write it to one of their last arguments. */
#pragma once

#include <stddef.h>

enum { WORK = 1 << 20 }; /* made up: what a card's library would ask for is not known */

#define TWENTY_ARGUMENTS \
    long a0, long a1, long a2, long a3, long a4, long a5, long a6, long a7, long a8, long a9, long a10, long a11, \
        long a12, long a13, long a14, long a15, long a16, long a17, long a18, long a19
#define ALL_ARGUMENTS \
    { a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15, a16, a17, a18, a19 }

/* Defines a function whose argument at `place` points to a `type` that receives `size`. In the calling convention of
 * x86-64 a function may name more arguments than it gets, as long as it does not use them. */
#define SIZE_OF(name, place, type, size) \
    int standin_##name(TWENTY_ARGUMENTS) { \
        const long all[] = ALL_ARGUMENTS; \
        *(type *)all[place] = (size); \
        return 0; \
    }
