"""One file per method. Each reads as its paper's algorithm box and imports the core only.

Listing names here loads nothing: a method's module is imported when a recipe names it.
"""

METHODS = {
    "fedavg": "algorithms.fedavg:FedAvg",
    "fedprox": "algorithms.fedprox:FedProx",
    "fedavgm": "algorithms.fedavgm:FedAvgM",
    "moon": "algorithms.moon:MOON",
    "fedgkd": "algorithms.fedgkd:FedGKD",
    "fedntd": "algorithms.fedntd:FedNTD",
    "feddisco": "algorithms.feddisco:FedDisco",
    "qffl": "algorithms.qffl:QFFL",
    "fedcog": "algorithms.fedcog:FedCOG",
    "fedgen": "algorithms.fedgen:FedGen",
    "fedftg": "algorithms.fedftg:FedFTG",
    "feddf": "algorithms.feddf:FedDF",
    "datafree": "algorithms.datafree:DataFree",
    "fedkf": "algorithms.fedkf:FedKF",
    "dafkd": "algorithms.dafkd:DaFKD",
    "kdia": "algorithms.kdia:KDIA",
    "fedd2s": "algorithms.fedd2s:FedD2S",
    "fedper": "algorithms.fedper:FedPer",
    "fedper_plus": "algorithms.fedper:FedPerPlus",
    "fedrep": "algorithms.fedrep:FedRep",
    "fedrep_plus": "algorithms.fedrep:FedRepPlus",
    "pfedsd": "algorithms.pfedsd:PFedSD",
    "centralized": "algorithms.centralized:Centralized",
    "standalone": "algorithms.standalone:StandAlone",
    "fedproto": "algorithms.fedproto:FedProto",
    "fedmd": "algorithms.fedmd:FedMD",
    "cronus": "algorithms.cronus:Cronus",
    "dsfl": "algorithms.dsfl:DSFL",
    "fedgkt": "algorithms.fedgkt:FedGKT",
    "fedict": "algorithms.fedict:FedICT",
    "fedgem": "algorithms.fedgems:FedGEM",
    "fedgems": "algorithms.fedgems:FedGEMS",
}
