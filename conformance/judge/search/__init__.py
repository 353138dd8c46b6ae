"""The search for sets of faults that explain an array: placements, trials, parameters, and the beam search over sets.

It serves a failing step (`judge.step_problem`), unexposed layers (`diagnosis.unexposed_layers`) and the outputs of a black
box (`diagnosis.problem`), each as a `Problem`.
"""
