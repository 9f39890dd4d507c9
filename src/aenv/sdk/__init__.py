"""What user programs hold. The async classes are the implementation; the sync face is derived from them.

Imports models only.
"""
