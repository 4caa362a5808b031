"""Child processes: started, called or executed, limited, sandboxed, and ended with all that they started.

To call functions in a child process, take a `worker.Worker`: it starts a process when it is needed and
replaces one that died; `pool.map_items` shares items among several. `remote.Remote` names a function and the
type of its result. `supervised.run_command` runs a command line. `limits` has timeouts and other limits,
`profiles` the sandboxes, `outcomes` the results: a value, an exception, or the way a process ended.

`child`, `fork_server` and `sandbox` run in the child and need nothing but the standard library.

Private: what is public is imported from `deepstack_harness` itself.
"""
