"""All nodes of a Ray cluster, or none: the same commands, and the same store on each node.

    nodes        the machines of a command, as `patcher.commands.where` wants them
    mirror       what planning reads of the nodes' files, one folder for each kind of installation
    changing     check all nodes, commit on each, undo what is done where one fails
    summary      the results of nodes as one
    node_worker  what a node does when it is called, with the store there
    node_group   how nodes are called and what they answer; `rays` calls them through Ray, `actor` is what Ray starts
                 there, `connecting` chooses the nodes

Nothing has to be installed on the nodes: the driver sends rlpatch along (`shipping`). It plans alone, so that the nodes
need no LibCST.
"""
