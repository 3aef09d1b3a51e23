"""The fields of requests about networks, in the form of `compute_fields`, which checks requests by them."""

from __future__ import annotations

from typing import Final

# ruff: noqa: E501 - values of an enumeration are one word
# fmt: off
SCHEMAS: Final = {
    "Firewall": (
        "allowed=[FirewallAllowed creationTimestamp=text denied=[FirewallDenied description=text "
        "destinationRanges=[text direction=EGRESS|INGRESS disabled=bool id=long kind=text logConfig=FirewallLogConfig "
        "name=text network=text params=FirewallParams priority=int selfLink=text sourceRanges=[text "
        "sourceServiceAccounts=[text sourceTags=[text targetServiceAccounts=[text targetTags=[text"
    ),
    "FirewallAllowed": "IPProtocol=text ports=[text",
    "FirewallDenied": "IPProtocol=text ports=[text",
    "FirewallLogConfig": "enable=bool metadata=EXCLUDE_ALL_METADATA|INCLUDE_ALL_METADATA",
    "FirewallParams": "resourceManagerTags={text",
    "Network": (
        "IPv4Range=text additionalTags=[text autoCreateSubnetworks=bool creationTimestamp=text description=text "
        "enableUlaInternalIpv6=bool firewallPolicy=text gatewayIPv4=text id=long internalIpv6Range=text kind=text "
        "mtu=int name=text networkFirewallPolicyEnforcementOrder=AFTER_CLASSIC_FIREWALL|BEFORE_CLASSIC_FIREWALL "
        "networkProfile=text params=NetworkParams peerings=[NetworkPeering routingConfig=NetworkRoutingConfig "
        "selfLink=text selfLinkWithId=text subnetworks=[text"
    ),
    "NetworkParams": "resourceManagerTags={text",
    "NetworkPeering": (
        "autoCreateRoutes=bool connectionStatus=NetworkPeeringConnectionStatus exchangeSubnetRoutes=bool "
        "exportCustomRoutes=bool exportSubnetRoutesWithPublicIp=bool importCustomRoutes=bool "
        "importSubnetRoutesWithPublicIp=bool name=text network=text peerMtu=int stackType=IPV4_IPV6|IPV4_ONLY "
        "state=ACTIVE|INACTIVE stateDetails=text updateStrategy=CONSENSUS|INDEPENDENT|UNSPECIFIED"
    ),
    "NetworkPeeringConnectionStatus": (
        "consensusState=NetworkPeeringConnectionStatusConsensusState "
        "trafficConfiguration=NetworkPeeringConnectionStatusTrafficConfiguration "
        "updateStrategy=CONSENSUS|INDEPENDENT|UNSPECIFIED"
    ),
    "NetworkPeeringConnectionStatusConsensusState": (
        "deleteStatus=DELETE_ACKNOWLEDGED|DELETE_STATUS_UNSPECIFIED|LOCAL_CANCEL_REQUESTED|LOCAL_DELETE_REQUESTED|PEER_CANCEL_REQUESTED|PEER_DELETE_REQUESTED "
        "updateStatus=IN_SYNC|PENDING_LOCAL_ACKNOWLEDMENT|PENDING_PEER_ACKNOWLEDGEMENT|UPDATE_STATUS_UNSPECIFIED"
    ),
    "NetworkPeeringConnectionStatusTrafficConfiguration": (
        "exportCustomRoutesToPeer=bool exportSubnetRoutesWithPublicIpToPeer=bool importCustomRoutesFromPeer=bool "
        "importSubnetRoutesWithPublicIpFromPeer=bool stackType=IPV4_IPV6|IPV4_ONLY"
    ),
    "NetworkRoutingConfig": (
        "bgpAlwaysCompareMed=bool bgpBestPathSelectionMode=LEGACY|STANDARD bgpInterRegionCost=ADD_COST_TO_MED|DEFAULT "
        "effectiveBgpAlwaysCompareMed=bool effectiveBgpInterRegionCost=ADD_COST_TO_MED|DEFAULT "
        "routingMode=GLOBAL|REGIONAL"
    ),
    "Router": (
        "bgp=RouterBgp bgpPeers=[RouterBgpPeer creationTimestamp=text description=text "
        "encryptedInterconnectRouter=bool id=long interfaces=[RouterInterface kind=text "
        "md5AuthenticationKeys=[RouterMd5AuthenticationKey name=text nats=[RouterNat nccGateway=text network=text "
        "params=RouterParams region=text selfLink=text"
    ),
    "RouterAdvertisedIpRange": "description=text range=text",
    "RouterBgp": (
        "advertiseMode=CUSTOM|DEFAULT advertisedGroups=[ALL_SUBNETS| advertisedIpRanges=[RouterAdvertisedIpRange "
        "asn=int identifierRange=text keepaliveInterval=int"
    ),
    "RouterBgpPeer": (
        "advertiseMode=CUSTOM|DEFAULT advertisedGroups=[ALL_SUBNETS| advertisedIpRanges=[RouterAdvertisedIpRange "
        "advertisedRoutePriority=int bfd=RouterBgpPeerBfd customLearnedIpRanges=[RouterBgpPeerCustomLearnedIpRange "
        "customLearnedRoutePriority=int enable=FALSE|TRUE enableIpv4=bool enableIpv6=bool exportPolicies=[text "
        "importPolicies=[text interfaceName=text ipAddress=text ipv4NexthopAddress=text ipv6NexthopAddress=text "
        "managementType=MANAGED_BY_ATTACHMENT|MANAGED_BY_USER md5AuthenticationKeyName=text name=text peerAsn=int "
        "peerIpAddress=text peerIpv4NexthopAddress=text peerIpv6NexthopAddress=text routerApplianceInstance=text"
    ),
    "RouterBgpPeerBfd": (
        "minReceiveInterval=int minTransmitInterval=int multiplier=int "
        "sessionInitializationMode=ACTIVE|DISABLED|PASSIVE"
    ),
    "RouterBgpPeerCustomLearnedIpRange": "range=text",
    "RouterInterface": (
        "ipRange=text ipVersion=IPV4|IPV6 linkedInterconnectAttachment=text linkedVpnTunnel=text "
        "managementType=MANAGED_BY_ATTACHMENT|MANAGED_BY_USER name=text privateIpAddress=text redundantInterface=text "
        "subnetwork=text"
    ),
    "RouterMd5AuthenticationKey": "key=text name=text",
    "RouterNat": (
        "autoNetworkTier=FIXED_STANDARD|PREMIUM|STANDARD|STANDARD_OVERRIDES_FIXED_STANDARD drainNatIps=[text "
        "effectiveTcpTimeWaitTimeoutSec=int enableDynamicPortAllocation=bool enableEndpointIndependentMapping=bool "
        "endpointTypes=[ENDPOINT_TYPE_MANAGED_PROXY_LB|ENDPOINT_TYPE_SWG|ENDPOINT_TYPE_VM icmpIdleTimeoutSec=int "
        "logConfig=RouterNatLogConfig maxPortsPerVm=int minPortsPerVm=int name=text "
        "nat64Subnetworks=[RouterNatSubnetworkToNat64 natIpAllocateOption=AUTO_ONLY|MANUAL_ONLY natIps=[text "
        "rules=[RouterNatRule "
        "sourceSubnetworkIpRangesToNat=ALL_SUBNETWORKS_ALL_IP_RANGES|ALL_SUBNETWORKS_ALL_PRIMARY_IP_RANGES|LIST_OF_SUBNETWORKS "
        "sourceSubnetworkIpRangesToNat64=ALL_IPV6_SUBNETWORKS|LIST_OF_IPV6_SUBNETWORKS "
        "subnetworks=[RouterNatSubnetworkToNat tcpEstablishedIdleTimeoutSec=int tcpTimeWaitTimeoutSec=int "
        "tcpTransitoryIdleTimeoutSec=int type=PRIVATE|PUBLIC udpIdleTimeoutSec=int"
    ),
    "RouterNatLogConfig": "enable=bool filter=ALL|ERRORS_ONLY|TRANSLATIONS_ONLY",
    "RouterNatRule": "action=RouterNatRuleAction description=text match=text ruleNumber=int",
    "RouterNatRuleAction": "sourceNatActiveIps=[text sourceNatActiveRanges=[text sourceNatDrainIps=[text sourceNatDrainRanges=[text",
    "RouterNatSubnetworkToNat": (
        "name=text secondaryIpRangeNames=[text "
        "sourceIpRangesToNat=[ALL_IP_RANGES|LIST_OF_SECONDARY_IP_RANGES|PRIMARY_IP_RANGE"
    ),
    "RouterNatSubnetworkToNat64": "name=text",
    "RouterParams": "resourceManagerTags={text",
    "Subnetwork": (
        "allowSubnetCidrRoutesOverlap=bool creationTimestamp=text description=text enableFlowLogs=bool "
        "externalIpv6Prefix=text fingerprint=bytes gatewayAddress=text id=long internalIpv6Prefix=text "
        "ipCidrRange=text ipCollection=text ipv6AccessType=EXTERNAL|INTERNAL ipv6CidrRange=text "
        "ipv6GceEndpoint=VM_AND_FR|VM_ONLY kind=text logConfig=SubnetworkLogConfig name=text network=text "
        "params=SubnetworkParams privateIpGoogleAccess=bool "
        "privateIpv6GoogleAccess=DISABLE_GOOGLE_ACCESS|ENABLE_BIDIRECTIONAL_ACCESS_TO_GOOGLE|ENABLE_OUTBOUND_VM_ACCESS_TO_GOOGLE "
        "purpose=GLOBAL_MANAGED_PROXY|INTERNAL_HTTPS_LOAD_BALANCER|PEER_MIGRATION|PRIVATE|PRIVATE_NAT|PRIVATE_RFC_1918|PRIVATE_SERVICE_CONNECT|REGIONAL_MANAGED_PROXY "
        "region=text reservedInternalRange=text "
        "resolveSubnetMask=ARP_ALL_RANGES|ARP_BROADCAST_PRIMARY_RANGE|ARP_BROADCAST_PRIMARY_RANGE_WITH_LEARNING|ARP_PRIMARY_RANGE "
        "role=ACTIVE|BACKUP secondaryIpRanges=[SubnetworkSecondaryRange selfLink=text "
        "stackType=IPV4_IPV6|IPV4_ONLY|IPV6_ONLY state=DRAINING|READY systemReservedExternalIpv6Ranges=[text "
        "systemReservedInternalIpv6Ranges=[text utilizationDetails=SubnetworkUtilizationDetails"
    ),
    "SubnetworkLogConfig": (
        "aggregationInterval=INTERVAL_10_MIN|INTERVAL_15_MIN|INTERVAL_1_MIN|INTERVAL_30_SEC|INTERVAL_5_MIN|INTERVAL_5_SEC "
        "enable=bool filterExpr=text flowSampling=float "
        "metadata=CUSTOM_METADATA|EXCLUDE_ALL_METADATA|INCLUDE_ALL_METADATA metadataFields=[text"
    ),
    "SubnetworkParams": "resourceManagerTags={text",
    "SubnetworkSecondaryRange": (
        "ipCidrRange=text ipCollection=text ipVersion=IPV4|IPV6|IP_VERSION_UNSPECIFIED rangeName=text "
        "reservedInternalRange=text"
    ),
    "SubnetworkUtilizationDetails": (
        "externalIpv6InstanceUtilization=SubnetworkUtilizationDetailsIPV6Utilization "
        "externalIpv6LbUtilization=SubnetworkUtilizationDetailsIPV6Utilization "
        "internalIpv6Utilization=SubnetworkUtilizationDetailsIPV6Utilization "
        "ipv4Utilizations=[SubnetworkUtilizationDetailsIPV4Utilization"
    ),
    "SubnetworkUtilizationDetailsIPV4Utilization": "rangeName=text totalAllocatedIp=long totalFreeIp=long",
    "SubnetworkUtilizationDetailsIPV6Utilization": "totalAllocatedIp=Uint128 totalFreeIp=Uint128",
    "Uint128": "high=long low=long",
}
# fmt: on
