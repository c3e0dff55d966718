/* What LAMMPS's plugin loader expects, and the functions of session.py that the pair style calls. */

#ifndef TORCHMDX_LAMMPS_PLUGIN_H
#define TORCHMDX_LAMMPS_PLUGIN_H

extern "C" {

/* As in LAMMPS's src/lammpsplugin.h, which is not among the headers that it installs. */
typedef void *(lammpsplugin_factory1)(void *);
typedef void *(lammpsplugin_factory2)(void *, int, char **);
typedef struct {
  const char *version, *style, *name, *info, *author;
  union {
    lammpsplugin_factory1 *v1;
    lammpsplugin_factory2 *v2;
  } creator;
  void *handle;
} lammpsplugin_t;
typedef void (*lammpsplugin_regfunc)(lammpsplugin_t *, void *);

/* Where session.py writes the reason of a failure. */
enum { MESSAGE_LENGTH = 2048 };

/* Each returns 0, or 1 after writing a message. Lengths are in Å, energies in eV. */
struct Callbacks {
  /* Loads a potential; arguments are those of pair_style, separated by newlines. */
  int (*open)(const char *arguments, int local_rank, int *session, double *reach, double *cutoff, char *message);
  /* Atomic numbers of element symbols, separated by spaces; 0 for NULL. */
  int (*elements)(int session, const char *symbols, int *numbers, char *message);
  /* Takes other atoms, the first `owned` of them this process's own; inputs: where positions are to be written. */
  int (*assign)(int session, int atoms, int owned, long long total, const int *numbers, const int *hops,
                const int *periodic, const double *cell, const double *positions, double **inputs, char *message);
  /* Evaluates at the positions in `inputs`; energies of owned atoms, forces of all, virial dE/dstrain [3,3]. */
  int (*evaluate)(int session, const double *cell, double *energy, double **energies, double **forces, double *virial,
                  char *message);
  /* Virials [N,3,3] of all atoms where they were evaluated last, signed as `virial`; flux: those of the heat flux. */
  int (*atom_virials)(int session, int flux, double **virials, char *message);
  void (*close)(int session);
};

void torchmdx_register(const Callbacks *callbacks);
}

#endif
