"""Fragments of the molecules of organic-1, as SMILES."""

from __future__ import annotations

# Always in training: many clusters consist of these, and no other molecule can represent them.
TINY = """[H][H] O N C F Cl S O=C=O [C-]#[O+] N#N C#N C=O CC C=C C#C CO CN CF CCl CS OO NN N=N OF OCl SS S=C=O S=C=S
O=S=O O=S(=O)=O C=C=O C=C=C N=C=O N=C=S [N-]=[N+]=O NO C=N CC=O C(=O)O CC#N COC CSC CNC ClCl FF FCl C1CC1 C1CO1
C1CN1 C1CS1 C(F)(F)F FC(F)(F)F ClC(Cl)Cl ClC(Cl)(Cl)Cl ClCCl O=C(F)F O=C(Cl)Cl O=NO O=[N+]([O-])O CN(C)C NC=O
OS(=O)(=O)O CS(=O)C C[N+](=O)[O-] C#CC#C N#CC#N [C-]#[N+]C CSSC COOC C1=CC1 C1=CO1 NC#N CN=[N+]=[N-] C=[N+]=[N-] ClN
FN OC(=O)O NC(=O)N NC(=S)N NC(=O)O SC=O CC(=S)C SN ClS FS(F)(=O)=O ClS(Cl)(=O)=O CC(=O)O CCO CC(C)=O c1ccccc1"""

# Charged, alone.
IONS = """C[NH3+] C[NH2+]C C[NH+](C)C C[N+](C)(C)C CC(=O)[O-] [O-]C=O NC(N)=[NH2+] CC(N)=[NH2+] c1c[nH]c[nH+]1
c1cc[nH+]cc1 C[S-] CC[S-] [O-]c1ccccc1 [S-]c1ccccc1 CS(=O)(=O)[O-] CS(=O)[O-] C[O-] CC[O-] C[n+]1ccn(C)c1
C[n+]1ccccc1 C[S+](C)C C[OH2+] C=[NH2+] C=[OH+] [O-][N+](=O)[O-] O=N[O-] [N-]=[N+]=[N-] [N-]=C=O [N-]=C=S [O-]Cl
[O-]Cl(=O)(=O)=O OS(=O)(=O)[O-] OC(=O)[O-] [O-]C(=O)C(=O)O [CH2-][N+](=O)[O-] [CH2-]C#N CC(=O)[CH-]C(C)=O
O=S(=O)([O-])c1ccccc1 c1ccc2[nH+]cccc2c1 C1CC[NH2+]CC1 C1C[NH2+]CCO1 CC(=O)[N-]C(C)=O CS(=O)(=O)[N-]C c1ncn[n-]1
c1nnn[n-]1 c1cc[n-]c1 CCCC(=O)[O-] CCC[NH3+] CC(C)(C)[NH3+] CNC(N)=[NH2+] Nc1cc[nH+]cc1 CN(C)c1cc[nH+]cc1
[O-]C(=O)c1ccccc1 [NH4+] [F-] [Cl-] [OH-] [OH3+] [SH-] [C-]#N"""
# Charged, in clusters and pairs too.
LONE = """[NH4+] [F-] [Cl-] [OH-] [OH3+] [SH-] [C-]#N C[NH3+] CC(=O)[O-] NC(N)=[NH2+] C[S-] C[O-]""".split()  # noqa: SIM905

RINGS = """c1ccccc1 c1ccncc1 c1cnccn1 c1cncnc1 c1ccnnc1 c1ncncn1 c1cc[nH]c1 c1ccoc1 c1ccsc1 c1c[nH]cn1 c1cn[nH]c1
c1cocn1 c1cscn1 c1cnoc1 c1cnsc1 c1c[nH]nn1 c1nc[nH]n1 c1nnc[nH]1 c1nnn[nH]1 c1nnco1 c1ncon1 c1nncs1 c1csnn1 c1nsnc1
c1ccc2[nH]ccc2c1 c1ccc2occc2c1 c1ccc2sccc2c1 c1ccc2[nH]cnc2c1 c1ccc2[nH]ncc2c1 c1ccc2ocnc2c1 c1ccc2scnc2c1
c1ccc2ncccc2c1 c1ccc2cnccc2c1 c1ccc2ccccc2c1 c1cnc2[nH]ccc2c1 c1ncc2[nH]cnc2n1 c1ccc2ncncc2c1 c1ccc2nccnc2c1
c1ccn2ccnc2c1 c1cnn2cccnc12 C1CC1 C1CCC1 C1CCCC1 C1CCCCC1 C1CCCCCC1 C1=CCCCC1 C1=CCCC1 C1CCOC1 C1CCOCC1 C1CCNC1
C1CCNCC1 C1CNCCN1 C1COCCN1 C1CCSC1 C1CSCCN1 C1CNC1 C1COC1 C1CSC1 C1CO1 C1CN1 C1CS1 O=C1CCCN1 O=C1CCN1 O=C1CCCO1
O=C1CCCCC1 O=C1CCCCN1 O=C1NC(=O)C=CN1 O=C1NCCN1 O=C1NCCO1 O=C1CCC(=O)N1 O=C1C=CC(=O)N1 O=C1CSC(=O)N1 O=C1NC(=O)CN1
O=C1OC(=O)C=C1 O=C1C=CC(=O)C=C1 O=c1cc[nH]cc1 O=c1cccc[nH]1 O=c1ccoc2ccccc12 O=c1ccc2ccccc2o1 C1OC=CO1 c1ccc2OCOc2c1
c1ccc2OCCOc2c1 c1ccc2c(c1)CCC2 c1ccc2c(c1)CCN2 c1ccc2c(c1)CCNC2 C1CC2CCC1C2 C1CC2CC1C=C2 C1CN2CCC1CC2 C1CC2CCC1N2
C1C2CC12 C1CC11CC1 C1CCC2(C1)OCCO2 C1OCCO1 C1COCO1 C1CCSS1 C1SCCS1 O=S1(=O)CCCC1 O=S1(=O)CCCN1
O=C1NS(=O)(=O)c2ccccc12 C1=NCCN1 C1=NCCO1 C1=NCCS1 c1ccc2c(c1)Cc1ccccc12 c1ccc2c(c1)[nH]c1ccccc12
c1ccc2c(c1)Nc1ccccc1S2 C1=CC=CC=CC1 C1=CCC=CC1 C1=CC=CC1 C1C=CC=CO1 O=C1c2ccccc2C(=O)N1 C1=CNC=CC1 N1C=CN=CC1
O=C1CN=Cc2ccccc2N1 C1CCC2CCCCC2C1 S=C1NC(=O)CS1 C1CNNC1 C1CCON1 C1=NNCC1 C1=NOCC1 c1ccc2nsnc2c1 c1ccc2nonc2c1
c1ccc2n[nH]nc2c1"""

# Drawn more often.
COMMON = """c1ccccc1 c1ccccc1 c1ccccc1 c1ccccc1 c1ccncc1 c1cncnc1 c1cn[nH]c1 c1c[nH]cn1 c1cc[nH]c1 c1ccoc1 c1ccsc1
c1ccc2[nH]ccc2c1 C1CCCCC1 C1CCCC1 C1CC1 C1CCNCC1 C1CNCCN1 C1COCCN1 C1CCOCC1 C1CCNC1 C1CCOC1"""

# The first atom binds.
GROUPS = """C C C CC C(C)C C(C)(C)C CCC F F Cl Cl C(F)(F)F C(F)F CF CCl C(Cl)(Cl)Cl OC(F)(F)F O O OC OCC N N NC
N(C)C C#N C(=O)O C(=O)O C(=O)OC C(=O)OCC OC(C)=O C(=O)N C(=O)NC C(=O)N(C)C NC(C)=O N(C)C(C)=O C=O C(C)=O C(=O)CC
CC(C)=O S(C)(=O)=O S(N)(=O)=O S(=O)(=O)NC NS(C)(=O)=O S(C)=O S(=O)(=O)O S(=O)(=O)F S(=O)(=O)Cl S SC SCC SSC CS CSC
CSSC SC#N [N+](=O)[O-] N=O N=[N+]=[N-] CN=[N+]=[N-] N=C=O N=C=S ON NO NN NNC C=NN C=NO C(C)=NO C=NC N=CC N=C N=NC
NC(=O)N NC(=O)NC NC(=O)OC OC(=O)N OC(=O)NC OC(=O)OC C(=O)OC(C)=O C(=O)Cl C(=O)F C(N)=N NC(N)=N NC(=N)N C(=S)N
NC(=S)N NC(=S)NC C(C)=S C(=O)S C(=O)SC SC(C)=O C(=S)OC C(=O)NN C(=O)NO C(=O)NC#N C#C C#CC C=C C=CC C(C)=C CC=C CC#C
C=C(C)C C=CC=C C=CC#N C=CC(=O)O C=CC(=O)OC C=CC=O C#CCO CO CCO CN CCN CNC CN(C)C CCN(C)C COC CCOC CC(=O)O CC(=O)N
CC(=O)OC CC#N CCC#N CCCl CCF CCS CCSC C(O)C C(C)O C(O)CO C(N)C(=O)O CC(N)C(=O)O OCC(=O)O OCCO OCCN OCC(O)CO NCC(=O)O
NCCO NCCN SCC(=O)O SCCO SCCN C(=O)CC(C)=O C(=O)C(=O)O C(=O)C(=O)OC OO OOC C(OC)OC C(O)(O)C C(F)(F)C C(F)=C C(Cl)=C
C=CF C=CCl OC=C NC=C SC=C C=C=O N(C)N=O OS(C)(=O)=O ON=C ONC OCl NCl NF N1CC1 N1CCC1 N1CCCC1 N1CCOCC1 N1CCNCC1 C1CC1
C1CO1 C1CCC1 N1C=CC=C1 N1C=CN=C1 c1ccccc1 c1ccco1 c1cccs1 c1cnc[nH]1 c1ccncc1 OCc1ccccc1 Cc1ccccc1 S(=O)(=O)c1ccccc1
NS(=O)(=O)N N=S(C)(C)=O S(C)(=N)=O C(O)=O C(=O)C(F)(F)F OCCOC OC(C)C"""

# Side chains as they hang at the alpha carbon; GLY, PRO are written whole.
RESIDUES = {
    "ALA": "C",
    "VAL": "C(C)C",
    "LEU": "CC(C)C",
    "ILE": "[C@@H](C)CC",
    "SER": "CO",
    "THR": "[C@@H](C)O",
    "CYS": "CS",
    "MET": "CCSC",
    "ASP": "CC(=O)O",
    "GLU": "CCC(=O)O",
    "ASN": "CC(=O)N",
    "GLN": "CCC(=O)N",
    "LYS": "CCCCN",
    "ARG": "CCCNC(=N)N",
    "HID": "Cc1c[nH]cn1",
    "HIE": "Cc1cnc[nH]1",
    "PHE": "Cc1ccccc1",
    "TYR": "Cc1ccc(O)cc1",
    "TRP": "Cc1c[nH]c2ccccc12",
}
CHARGED_RESIDUES = {
    "ASH-": "CC(=O)[O-]",
    "GLH-": "CCC(=O)[O-]",
    "LYS+": "CCCC[NH3+]",
    "ARG+": "CCCNC(=[NH2+])N",
    "HIP+": "Cc1c[nH]c[nH+]1",
    "CYM-": "C[S-]",
    "TYM-": "Cc1ccc([O-])cc1",
    "ORN+": "CCC[NH3+]",
    "SEP": "COC(C)=O",
}

BIOCHEMICAL = """Nc1ncnc2[nH]cnc12 Nc1cc[nH]c(=O)n1 O=c1cc[nH]c(=O)[nH]1 Cc1c[nH]c(=O)[nH]c1=O
Nc1nc2[nH]cnc2c(=O)[nH]1 Cn1cnc2c(N)ncnc12 Cn1ccc(N)nc1=O Cn1ccc(=O)[nH]c1=O Cn1cc(C)c(=O)[nH]c1=O
Cn1cnc2c(=O)[nH]c(N)nc12 O=c1[nH]cnc2[nH]cnc12 O=c1[nH]c(=O)c2[nH]cnc2[nH]1 Cn1cnc2c1c(=O)n(C)c(=O)n2C
Nc1ncnc2c1ncn2C1CCCO1 OC[C@H]1O[C@@H](n2cnc3c(N)ncnc32)C[C@@H]1O OC[C@H]1O[C@@H](n2ccc(=O)[nH]c2=O)C[C@@H]1O
OC[C@H]1O[C@@H](n2ccc(N)nc2=O)[C@H](O)[C@@H]1O OC[C@H]1O[C@@H](n2cc(C)c(=O)[nH]c2=O)C[C@@H]1O OCC(O)C=O OCC(=O)CO
OC[C@@H](O)[C@@H](O)C=O OC[C@H]1OC(O)[C@H](O)[C@@H]1O OC[C@H]1O[C@@H](O)[C@H](O)[C@@H](O)[C@@H]1O
OC[C@H]1O[C@H](O)[C@H](O)[C@@H](O)[C@@H]1O OC[C@H]1O[C@@H](O)[C@H](O)[C@@H](O)[C@H]1O OC1COC(O)C(O)C1O
OC[C@@]1(O)OC[C@@H](O)[C@@H](O)[C@@H]1O OCC(O)CO OCC(O)C(O)CO CC(=O)N[C@@H]1[C@@H](O)O[C@H](CO)[C@@H](O)[C@@H]1O
COC1OC(CO)C(O)C(O)C1O C[C@H](O)C(=O)O CC(=O)C(=O)O OC(=O)CCC(=O)O OC(=O)/C=C/C(=O)O OC(=O)CC(O)(CC(=O)O)C(=O)O
OC(=O)CC(=O)C(=O)O NCCc1ccc(O)c(O)c1 NCCc1c[nH]c2ccc(O)cc12 NCCc1c[nH]cn1 NCCCC(=O)O NCCS(=O)(=O)O C[N+](C)(C)CCO
C[N+](C)(C)CC(=O)[O-] CN(CC(=O)O)C(N)=N OC(=O)c1cccnc1 NC(=O)c1cccnc1 Cc1ncc(CO)c(C=O)c1O CC(=O)Oc1ccccc1C(=O)O
CC(=O)Nc1ccc(O)cc1 CC(C)Cc1ccc(C(C)C(=O)O)cc1 OC(=O)c1ccccc1O CN1CCCC1c1cccnc1 C=CC(=O)OC CC1=CCC(C(C)=C)CC1
CC(C)C1CCC(C)CC1O COc1cc(C=O)ccc1O C=Cc1ccccc1 CCCCCCCC CCCCCCCCCC CCCCCCCC(=O)O CCCCCCO CCCCCCN COCCOCCOC
C1COCCOCCOCCO1 CSCC[C@H](N)C(=O)O C1CCC2(CC1)OCCO2 O=C(O)C1CCCN1 FC(F)(F)c1ccccc1 FC(F)(F)C(F)(F)F FC(F)=C(F)F
ClC=CCl ClC(Cl)=C(Cl)Cl Fc1c(F)c(F)c(F)c(F)c1F"""

# Of the held-out set: twice the size of anything in training, in the chemistry of medicines.
LARGE = {
    "imatinib": "Cc1ccc(NC(=O)c2ccc(CN3CCN(C)CC3)cc2)cc1Nc1nccc(-c2cccnc2)n1",
    "erlotinib": "COCCOc1cc2ncnc(Nc3cccc(C#C)c3)c2cc1OCCOC",
    "gefitinib": "COc1cc2ncnc(Nc3ccc(F)c(Cl)c3)c2cc1OCCCN1CCOCC1",
    "sildenafil": "CCCc1nn(C)c2c1nc([nH]c2=O)-c1cc(ccc1OCC)S(=O)(=O)N1CCN(C)CC1",
    "celecoxib-like": "Cc1ccc(cc1)-c1cc(C(F)(F)F)nn1-c1ccc(cc1)S(=O)(=O)NC(=O)CCCC(C)C",
    "glibenclamide": "COc1ccc(Cl)cc1C(=O)NCCc1ccc(cc1)S(=O)(=O)NC(=O)NC1CCCCC1",
    "diltiazem": "COc1ccc(cc1)[C@@H]1Sc2ccccc2N(CCN(C)C)C(=O)[C@@H]1OC(C)=O",
    "verapamil": "COc1ccc(CCN(C)CCCC(C#N)(C(C)C)c2ccc(OC)c(OC)c2)cc1OC",
    "losartan": "CCCCc1nc(Cl)c(CO)n1Cc1ccc(cc1)-c1ccccc1-c1nnn[nH]1",
    "penicillin-V-butyl": "CCCCOC(=O)[C@@H]1N2C(=O)[C@@H](NC(=O)COc3ccccc3)[C@H]2SC1(C)C",
    "amlodipine": "CCOC(=O)C1=C(COCCN)NC(C)=C(C1c1ccccc1Cl)C(=O)OC",
    "haloperidol-acetate": "CC(=O)OC1(CCN(CCCC(=O)c2ccc(F)cc2)CC1)c1ccc(Cl)cc1",
    "citalopram-glycol": "CN(C)CCCC1(OCc2cc(C#N)ccc12)c1ccc(OCCOC)cc1",
    "raltegravir": "CC1=NN=C(O1)C(=O)NC(C)(C)C1=NC(C(=O)NCc2ccc(F)cc2)=C(O)C(=O)N1C",
    "oseltamivir": "CCOC(=O)C1=C[C@@H](OC(CC)CC)[C@H](NC(C)=O)[C@@H](N)C1",
    "furosemide-amide": "NS(=O)(=O)c1cc(C(=O)NCCN2CCOCC2)c(NCc2ccco2)cc1Cl",
    "ranitidine-butyl": "CCCCN(C)Cc1ccc(CSCCNC(=C[N+](=O)[O-])N(C)C)o1",
    "warfarin-ester": "CC(=O)CC(c1ccccc1)c1c(OC(=O)CCCC)c2ccccc2oc1=O",
    "omeprazole-N-butyl": "CCCCn1c(S(=O)Cc2ncc(C)c(OC)c2C)nc2cc(OC)ccc12",
    "cholesterol": "C[C@H](CCCC(C)C)[C@H]1CC[C@@H]2[C@@]1(CC[C@H]3[C@H]2CC=C4[C@@]3(CC[C@@H](C4)O)C)C",
    "lauryl-maltol-ether": "CCCCCCCCCCCCOC1OC(CO)C(O)C(O)C1O",
    "decanoyl-choline+": "CCCCCCCCCC(=O)OCC[N+](C)(C)C",
    "stearate-": "CCCCCCCCCCCCCCCCCC(=O)[O-]",
    "quinine-acetate": "COc1ccc2nccc([C@@H](OC(C)=O)[C@H]3CC4CCN3CC4C=C)c2c1",
}
PEPTIDES = [
    "GAVS",
    "ASGC",
    "GPGA",
    "SCAG",
    "TGDA",
    "NGAG",
    "AAAA",
    "GSFG",
    "MAGS",
    "GDKA",
    "GEAS",
    "HGAS",
    "QAGA",
    "GTYG",
    "AVAG",
    "CGAC",
]
LETTERS = {
    "G": "GLY",
    "A": "ALA",
    "V": "VAL",
    "S": "SER",
    "C": "CYS",
    "P": "PRO",
    "T": "THR",
    "D": "ASP",
    "N": "ASN",
    "F": "PHE",
    "M": "MET",
    "K": "LYS+",
    "E": "GLH-",
    "H": "HIE",
    "Q": "GLN",
    "Y": "TYR",
}
