"""The contract that every method keeps, as a check that a method's author can run.

    from rayfed_kd.testing import check_method

    def test_my_method_keeps_the_contract():
        check_method("my_module:MyMethod", options={"mu": 0.1})

The check runs the method for two small rounds on the CPU, and holds every call against `RULES`. It takes a
few seconds. Importing this package loads torch, but not Ray.
"""

from rayfed_kd.testing.checking import SMALL, check_method
from rayfed_kd.testing.rules import RULES, ContractError

__all__ = ["RULES", "SMALL", "ContractError", "check_method"]
