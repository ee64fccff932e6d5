"""One file per method. Each reads as its paper's algorithm box and imports the core only.

Listing names here loads nothing: a method's module is imported when a recipe names it.
"""

METHODS = {
    "fedavg": "algorithms.fedavg:FedAvg",
    "fedprox": "algorithms.fedprox:FedProx",
    "fedavgm": "algorithms.fedavgm:FedAvgM",
    "moon": "algorithms.moon:MOON",
    "fedgkd": "algorithms.fedgkd:FedGKD",
    "feddisco": "algorithms.feddisco:FedDisco",
    "qffl": "algorithms.qffl:QFFL",
    "fedcog": "algorithms.fedcog:FedCOG",
    "fedgen": "algorithms.fedgen:FedGen",
    "fedftg": "algorithms.fedftg:FedFTG",
    "datafree": "algorithms.datafree:DataFree",
    "fedkf": "algorithms.fedkf:FedKF",
    "dafkd": "algorithms.dafkd:DaFKD",
    "kdia": "algorithms.kdia:KDIA",
}
