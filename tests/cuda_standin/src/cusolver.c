/* Decompositions do nothing; the status that they write to the device is zero, as all memory there: it went well. */
#include "sizes.h"

/* Counts of numbers, not bytes. */
#define FOR_REAL_AND_COMPLEX(function, place) \
    SIZE_OF(cusolverDnS##function, place, int, WORK / 16) \
    SIZE_OF(cusolverDnD##function, place, int, WORK / 16) \
    SIZE_OF(cusolverDnC##function, place, int, WORK / 16) \
    SIZE_OF(cusolverDnZ##function, place, int, WORK / 16)
#define FOR_REAL(function, place) \
    SIZE_OF(cusolverDnS##function, place, int, WORK / 16) SIZE_OF(cusolverDnD##function, place, int, WORK / 16)
#define FOR_COMPLEX(function, place) \
    SIZE_OF(cusolverDnC##function, place, int, WORK / 16) SIZE_OF(cusolverDnZ##function, place, int, WORK / 16)
/* Bytes on the device and, next to it, bytes on the host, of which none are needed. */
#define GENERIC(function, place) \
    int standin_cusolverDnX##function(TWENTY_ARGUMENTS) { \
        const long all[] = ALL_ARGUMENTS; \
        *(size_t *)all[place] = WORK; \
        *(size_t *)all[(place) + 1] = 0; \
        return 0; \
    }

FOR_REAL_AND_COMPLEX(getrf_bufferSize, 5)
FOR_REAL_AND_COMPLEX(potrf_bufferSize, 5)
FOR_REAL_AND_COMPLEX(geqrf_bufferSize, 5)
FOR_REAL_AND_COMPLEX(sytrf_bufferSize, 4)
FOR_REAL_AND_COMPLEX(gesvd_bufferSize, 3)
FOR_REAL_AND_COMPLEX(gesvdj_bufferSize, 12)
FOR_REAL_AND_COMPLEX(gesvdjBatched_bufferSize, 11)
FOR_REAL_AND_COMPLEX(gesvdaStridedBatched_bufferSize, 16)
FOR_REAL(orgqr_bufferSize, 7)
FOR_REAL(ormqr_bufferSize, 11)
FOR_REAL(syevd_bufferSize, 7)
FOR_REAL(syevjBatched_bufferSize, 7)
FOR_COMPLEX(ungqr_bufferSize, 7)
FOR_COMPLEX(unmqr_bufferSize, 11)
FOR_COMPLEX(heevd_bufferSize, 7)
FOR_COMPLEX(heevjBatched_bufferSize, 7)
GENERIC(potrf_bufferSize, 8)
GENERIC(geqrf_bufferSize, 10)
GENERIC(syevd_bufferSize, 11)
GENERIC(syevBatched_bufferSize, 11)
GENERIC(sytrs_bufferSize, 11)
GENERIC(geev_bufferSize, 17)
