"""One file per method. Each reads as its paper's algorithm box and imports the core only.

Listing names here loads nothing: a method's module is imported when a recipe names it.
"""

METHODS = {
    "fedavg": "algorithms.fedavg:FedAvg",
    "datafree": "algorithms.datafree:DataFree",
    "fedkf": "algorithms.fedkf:FedKF",
    "dafkd": "algorithms.dafkd:DaFKD",
    "kdia": "algorithms.kdia:KDIA",
    "fedmd": "algorithms.fedmd:FedMD",
    "fedgem": "algorithms.fedgems:FedGEM",
    "fedgems": "algorithms.fedgems:FedGEMS",
}
