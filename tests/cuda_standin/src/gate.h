/* Faults: what is asked before a call is made. */
#pragma once

/* Points to a number that is not zero as long as calls must be asked about. */
extern int *standin_armed;

/* What the call must return at once; 0: it is made. */
int standin_gate(const char *function);

/* What the library thinks of a call that no fault strikes: 0, or the error of a broken context or a lost device. */
int library_state(const char *function);

/* What the library does when a fault has struck. */
void library_struck(const char *function, int code, int sticky);

/* Ask about every call of this process from now on. */
void arm(void);
