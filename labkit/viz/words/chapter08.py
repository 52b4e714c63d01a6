"""Words of the pictures in chapter 8."""

CHAPTER08 = {
    # the mesh, and ranks on nodes
    "mesh.title": "groups along {axis}: {groups} of {size}",
    "mesh.alt": "{panels} cubes of the same {ranks} ranks. {told}.",
    "mesh.alt_axis": "Along {axis} the groups are {groups}",
    "nodes.node": "node {n}",
    "nodes.title": "{order}: {crossing} of {hops} hops along {axis} leave a node",
    "nodes.alt": "{ranks} ranks in {nodes} nodes of {per_node}, counted by the order {order}, the "
    "axis of nearest neighbours last. The groups along {axis} are {groups}; {crossing} of {hops} "
    "hops leave a node.",
    "nodes.told": "Between nodes in a step: {parts}; together {total}",
    "nodes.part": "{axis} {text}",
    "nodes.setting_order": "order, fastest last",
    "nodes.setting_axis": "groups along",
    # context parallelism
    "axis.query_token": "token that asks",
    "axis.key_token": "token that is asked",
    "context.contiguous": "contiguous",
    "context.zigzag": "zigzag",
    "context.title": "{layout}:\nrank {rank} has {share} of the work",
    "context.alt": "Triangles of squares: chunks of tokens that ask, downwards, and that are "
    "asked, to the right. A row has the colour of its rank. {told}.",
    "context.alt_layout": "{layout}: ranks 0 to {last} have {shares} of the work",
    # checkpoints
    "interval.setting_devices": "devices",
    "interval.setting_save": "a save takes",
    "interval.setting_hidden": "hidden of it",
    "interval.label": "{devices} devices; a save of {save}, of which work waits for {blocking}; "
    "{restart} a restart",
}
