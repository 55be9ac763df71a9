// A libcuda.so.1 that has nothing but cuInit: the loader must find it in the process, and say what it lacks.
#pragma GCC visibility push(default)
extern "C" {
int cuInit(unsigned int);
int cuInit(unsigned int) { return 0; }
}
#pragma GCC visibility pop
