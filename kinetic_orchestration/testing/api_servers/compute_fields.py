"""The fields of the requests that Compute Engine takes, and what is wrong in a request's body. Pure.

Written down from Google's discovery document of Compute Engine, revision 20261106, which a test compares it with: the
document itself is 5 MB, and a development dependency. Of each schema all fields, in its order: NAME=TYPE, where a type
is one of this table, a list `[`, a map of names `{`, or the values that it may have.
"""

from __future__ import annotations

import base64
import binascii
import functools
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from kinetic_orchestration.testing.api_rules import compute_refusals
from kinetic_orchestration.testing.api_servers.projects import network_fields

# ruff: noqa: E501 - values of an enumeration are one word
# fmt: off
SCHEMAS: Final = {
    **network_fields.SCHEMAS,
    "AcceleratorConfig": "acceleratorCount=int acceleratorType=text",
    "AccessConfig": (
        "externalIpv6=text externalIpv6PrefixLength=int ipCollection=text kind=text name=text natIP=text "
        "networkTier=FIXED_STANDARD|PREMIUM|STANDARD|STANDARD_OVERRIDES_FIXED_STANDARD "
        "publicPtrDomainName=text securityPolicy=text setPublicPtr=bool type=DIRECT_IPV6|ONE_TO_ONE_NAT"
    ),
    "AdvancedMachineFeatures": (
        "enableNestedVirtualization=bool enableUefiNetworking=bool "
        "performanceMonitoringUnit=ARCHITECTURAL|ENHANCED|PERFORMANCE_MONITORING_UNIT_UNSPECIFIED|STANDARD "
        "threadsPerCore=int turboMode=text visibleCoreCount=int"
    ),
    "AliasIpRange": "ipCidrRange=text subnetworkRangeName=text",
    "AttachedDisk": (
        "architecture=ARCHITECTURE_UNSPECIFIED|ARM64|X86_64 autoDelete=bool boot=bool deviceName=text "
        "diskEncryptionKey=CustomerEncryptionKey diskSizeGb=long forceAttach=bool "
        "guestOsFeatures=[GuestOsFeature index=int initializeParams=AttachedDiskInitializeParams "
        "interface=NVME|SCSI kind=text licenses=[text mode=READ_ONLY|READ_WRITE "
        "savedState=DISK_SAVED_STATE_UNSPECIFIED|PRESERVED shieldedInstanceInitialState=InitialStateConfig "
        "source=text type=PERSISTENT|SCRATCH"
    ),
    "AttachedDiskInitializeParams": (
        "architecture=ARCHITECTURE_UNSPECIFIED|ARM64|X86_64 description=text diskName=text diskSizeGb=long "
        "diskType=text enableConfidentialCompute=bool labels={text licenses=[text "
        "onUpdateAction=RECREATE_DISK|RECREATE_DISK_IF_SOURCE_CHANGED|USE_EXISTING_DISK provisionedIops=long "
        "provisionedThroughput=long replicaZones=[text resourceManagerTags={text resourcePolicies=[text "
        "sourceImage=text sourceImageEncryptionKey=CustomerEncryptionKey sourceSnapshot=text "
        "sourceSnapshotEncryptionKey=CustomerEncryptionKey storagePool=text"
    ),
    "ConfidentialInstanceConfig": (
        "confidentialInstanceType=BMSAI|CCA|CONFIDENTIAL_INSTANCE_TYPE_UNSPECIFIED|SEV|SEV_SNP|TDX "
        "confidentialParavisorConfig=ConfidentialParavisorConfig enableConfidentialCompute=bool"
    ),
    "ConfidentialParavisorConfig": (
        "confidentialTpmType=CONFIDENTIAL_TPM_TYPE_UNSPECIFIED|EPHEMERAL|NO_CC_TPM "
        "sevSnpIrqMode=RESTRICTED|SEV_SNP_IRQ_MODE_UNSPECIFIED|UNRESTRICTED"
    ),
    "CustomerEncryptionKey": "kmsKeyName=text kmsKeyServiceAccount=text rawKey=text rsaEncryptedKey=text sha256=text",
    "DiskInstantiationConfig": (
        "autoDelete=bool customImage=text deviceName=text "
        "instantiateFrom=ATTACH_READ_ONLY|BLANK|CUSTOM_IMAGE|DEFAULT|DO_NOT_INCLUDE|SOURCE_IMAGE|SOURCE_IMAGE_FAMILY"
    ),
    "DisplayDevice": "enableDisplay=bool",
    "DistributionPolicy": (
        "targetShape=ANY|ANY_SINGLE_ZONE|BALANCED|EVEN zones=[DistributionPolicyZoneConfiguration"
    ),
    "DistributionPolicyZoneConfiguration": "zone=text",
    "Duration": "nanos=int seconds=long",
    "ErrorInfo": "domain=text metadatas={text reason=text",
    "FileContentBuffer": "content=bytes fileType=BIN|UNDEFINED|X509",
    "FixedOrPercent": "calculated=int fixed=int percent=int",
    "GuestOsFeature": "type=BARE_METAL_LINUX_COMPATIBLE|BMSAI_CAPABLE|CCA_CAPABLE|FEATURE_TYPE_UNSPECIFIED|GVNIC|IDPF|MULTI_IP_SUBNET|SECURE_BOOT|SEV_CAPABLE|SEV_LIVE_MIGRATABLE|SEV_LIVE_MIGRATABLE_V2|SEV_SNP_CAPABLE|SNP_SVSM_CAPABLE|SUSPEND_SAFE_FPR|TDX_CAPABLE|UEFI_COMPATIBLE|VIRTIO_SCSI_MULTIQUEUE|WINDOWS",
    "Help": "links=[HelpLink",
    "HelpLink": "description=text url=text",
    "InitialStateConfig": "dbs=[FileContentBuffer dbxs=[FileContentBuffer keks=[FileContentBuffer pk=FileContentBuffer",
    "Instance": (
        "advancedMachineFeatures=AdvancedMachineFeatures canIpForward=bool "
        "confidentialInstanceConfig=ConfidentialInstanceConfig cpuPlatform=text creationTimestamp=text "
        "deletionProtection=bool description=text disks=[AttachedDisk displayDevice=DisplayDevice "
        "fingerprint=bytes guestAccelerators=[AcceleratorConfig hostname=text id=long "
        "instanceEncryptionKey=CustomerEncryptionKey "
        "keyRevocationActionType=KEY_REVOCATION_ACTION_TYPE_UNSPECIFIED|NONE|STOP kind=text "
        "labelFingerprint=bytes labels={text lastStartTimestamp=text lastStopTimestamp=text "
        "lastSuspendedTimestamp=text "
        "localSsdEncryptionMode=EPHEMERAL_KEY_ENCRYPTION|LOCAL_SSD_ENCRYPTION_MODE_UNSPECIFIED|STANDARD_ENCRYPTION "
        "machineType=text metadata=Metadata minCpuPlatform=text name=text networkInterfaces=[NetworkInterface "
        "networkPerformanceConfig=NetworkPerformanceConfig params=InstanceParams "
        "privateIpv6GoogleAccess=ENABLE_BIDIRECTIONAL_ACCESS_TO_GOOGLE|ENABLE_OUTBOUND_VM_ACCESS_TO_GOOGLE|INHERIT_FROM_SUBNETWORK "
        "reservationAffinity=ReservationAffinity resourcePolicies=[text resourceStatus=ResourceStatus "
        "satisfiesPzi=bool satisfiesPzs=bool scheduling=Scheduling selfLink=text "
        "serviceAccounts=[ServiceAccount shieldedInstanceConfig=ShieldedInstanceConfig "
        "shieldedInstanceIntegrityPolicy=ShieldedInstanceIntegrityPolicy sourceMachineImage=text "
        "sourceMachineImageEncryptionKey=CustomerEncryptionKey startRestricted=bool "
        "status=DEPROVISIONING|PENDING|PENDING_STOP|PROVISIONING|REPAIRING|RUNNING|STAGING|STOPPED|STOPPING|SUSPENDED|SUSPENDING|TERMINATED "
        "statusMessage=text tags=Tags workloadIdentityConfig=WorkloadIdentityConfig zone=text"
    ),
    "InstanceGroupManager": (
        "allInstancesConfig=InstanceGroupManagerAllInstancesConfig "
        "autoHealingPolicies=[InstanceGroupManagerAutoHealingPolicy baseInstanceName=text creationTimestamp=text "
        "currentActions=InstanceGroupManagerActionsSummary description=text distributionPolicy=DistributionPolicy "
        "fingerprint=bytes id=long instanceFlexibilityPolicy=InstanceGroupManagerInstanceFlexibilityPolicy "
        "instanceGroup=text instanceLifecyclePolicy=InstanceGroupManagerInstanceLifecyclePolicy "
        "instanceTemplate=text kind=text listManagedInstancesResults=PAGELESS|PAGINATED name=text "
        "namedPorts=[NamedPort region=text resourcePolicies=InstanceGroupManagerResourcePolicies "
        "satisfiesPzi=bool satisfiesPzs=bool selfLink=text standbyPolicy=InstanceGroupManagerStandbyPolicy "
        "statefulPolicy=StatefulPolicy status=InstanceGroupManagerStatus targetPools=[text targetSize=int "
        "targetSizePolicy=InstanceGroupManagerTargetSizePolicy targetStoppedSize=int targetSuspendedSize=int "
        "updatePolicy=InstanceGroupManagerUpdatePolicy versions=[InstanceGroupManagerVersion zone=text"
    ),
    "InstanceGroupManagerActionsSummary": (
        "abandoning=int creating=int creatingWithoutRetries=int deleting=int none=int recreating=int "
        "refreshing=int restarting=int resuming=int starting=int stopping=int suspending=int verifying=int"
    ),
    "InstanceGroupManagerAllInstancesConfig": "properties=InstancePropertiesPatch",
    "InstanceGroupManagerAutoHealingPolicy": "healthCheck=text initialDelaySec=int",
    "InstanceGroupManagerInstanceFlexibilityPolicy": (
        "instanceSelections={InstanceGroupManagerInstanceFlexibilityPolicyInstanceSelection"
    ),
    "InstanceGroupManagerInstanceFlexibilityPolicyInstanceSelection": (
        "disks=[AttachedDisk machineTypes=[text minCpuPlatform=text rank=int"
    ),
    "InstanceGroupManagerInstanceLifecyclePolicy": (
        "defaultActionOnFailure=DO_NOTHING|REPAIR forceUpdateOnRepair=NO|YES "
        "onFailedHealthCheck=DEFAULT_ACTION|DO_NOTHING|REPAIR "
        "onRepair=InstanceGroupManagerInstanceLifecyclePolicyOnRepair"
    ),
    "InstanceGroupManagerInstanceLifecyclePolicyOnRepair": "allowChangingZone=NO|YES",
    "InstanceGroupManagerResourcePolicies": "workloadPolicy=text",
    "InstanceGroupManagerStandbyPolicy": "initialDelaySec=int mode=MANUAL|SCALE_OUT_POOL",
    "InstanceGroupManagerStatus": (
        "allInstancesConfig=InstanceGroupManagerStatusAllInstancesConfig "
        "appliedAcceleratorTopologies=[InstanceGroupManagerStatusAcceleratorTopology autoscaler=text "
        "bulkInstanceOperation=InstanceGroupManagerStatusBulkInstanceOperation "
        "currentInstanceStatuses=InstanceGroupManagerStatusInstanceStatusSummary isStable=bool "
        "stateful=InstanceGroupManagerStatusStateful versionTarget=InstanceGroupManagerStatusVersionTarget"
    ),
    "InstanceGroupManagerStatusAcceleratorTopology": (
        "acceleratorTopology=text "
        "state=ACTIVATING|ACTIVE|ACTIVE_DEGRADED|DEACTIVATING|FAILED|INCOMPLETE|REACTIVATING "
        "stateDetails=InstanceGroupManagerStatusAcceleratorTopologyAcceleratorTopologyStateDetails"
    ),
    "InstanceGroupManagerStatusAcceleratorTopologyAcceleratorTopologyStateDetails": (
        "error=InstanceGroupManagerStatusAcceleratorTopologyAcceleratorTopologyStateDetailsError timestamp=text"
    ),
    "InstanceGroupManagerStatusAcceleratorTopologyAcceleratorTopologyStateDetailsError": (
        "errors=[InstanceGroupManagerStatusAcceleratorTopologyAcceleratorTopologyStateDetailsErrorErrors"
    ),
    "InstanceGroupManagerStatusAcceleratorTopologyAcceleratorTopologyStateDetailsErrorErrors": (
        "code=text "
        "errorDetails=[InstanceGroupManagerStatusAcceleratorTopologyAcceleratorTopologyStateDetailsErrorErrorsErrorDetails "
        "location=text message=text"
    ),
    "InstanceGroupManagerStatusAcceleratorTopologyAcceleratorTopologyStateDetailsErrorErrorsErrorDetails": (
        "errorInfo=ErrorInfo help=Help localizedMessage=LocalizedMessage quotaInfo=QuotaExceededInfo"
    ),
    "InstanceGroupManagerStatusAllInstancesConfig": "currentRevision=text effective=bool",
    "InstanceGroupManagerStatusBulkInstanceOperation": (
        "inProgress=bool lastProgressCheck=InstanceGroupManagerStatusBulkInstanceOperationLastProgressCheck"
    ),
    "InstanceGroupManagerStatusBulkInstanceOperationLastProgressCheck": (
        "error=InstanceGroupManagerStatusBulkInstanceOperationLastProgressCheckError timestamp=text"
    ),
    "InstanceGroupManagerStatusBulkInstanceOperationLastProgressCheckError": (
        "errors=[InstanceGroupManagerStatusBulkInstanceOperationLastProgressCheckErrorErrors"
    ),
    "InstanceGroupManagerStatusBulkInstanceOperationLastProgressCheckErrorErrors": (
        "code=text "
        "errorDetails=[InstanceGroupManagerStatusBulkInstanceOperationLastProgressCheckErrorErrorsErrorDetails "
        "location=text message=text"
    ),
    "InstanceGroupManagerStatusBulkInstanceOperationLastProgressCheckErrorErrorsErrorDetails": (
        "errorInfo=ErrorInfo help=Help localizedMessage=LocalizedMessage quotaInfo=QuotaExceededInfo"
    ),
    "InstanceGroupManagerStatusInstanceStatusSummary": (
        "deprovisioning=int nonExistent=int pending=int pendingStop=int provisioning=int repairing=int "
        "running=int staging=int stopped=int stopping=int suspended=int suspending=int terminated=int"
    ),
    "InstanceGroupManagerStatusStateful": (
        "hasStatefulConfig=bool perInstanceConfigs=InstanceGroupManagerStatusStatefulPerInstanceConfigs"
    ),
    "InstanceGroupManagerStatusStatefulPerInstanceConfigs": "allEffective=bool",
    "InstanceGroupManagerStatusVersionTarget": "isReached=bool",
    "InstanceGroupManagerTargetSizePolicy": "mode=BULK|INDIVIDUAL|UNSPECIFIED_MODE",
    "InstanceGroupManagerUpdatePolicy": (
        "instanceRedistributionType=NONE|PROACTIVE maxSurge=FixedOrPercent maxUnavailable=FixedOrPercent "
        "minimalAction=NONE|REFRESH|REPLACE|RESTART mostDisruptiveAllowedAction=NONE|REFRESH|REPLACE|RESTART "
        "replacementMethod=RECREATE|SUBSTITUTE type=OPPORTUNISTIC|PROACTIVE"
    ),
    "InstanceGroupManagerVersion": "instanceTemplate=text name=text targetSize=FixedOrPercent",
    "InstanceParams": "requestValidForDuration=Duration resourceManagerTags={text",
    "InstanceProperties": (
        "advancedMachineFeatures=AdvancedMachineFeatures canIpForward=bool "
        "confidentialInstanceConfig=ConfidentialInstanceConfig description=text disks=[AttachedDisk "
        "guestAccelerators=[AcceleratorConfig "
        "keyRevocationActionType=KEY_REVOCATION_ACTION_TYPE_UNSPECIFIED|NONE|STOP labels={text "
        "localSsdEncryptionMode=EPHEMERAL_KEY_ENCRYPTION|LOCAL_SSD_ENCRYPTION_MODE_UNSPECIFIED|STANDARD_ENCRYPTION "
        "machineType=text metadata=Metadata minCpuPlatform=text networkInterfaces=[NetworkInterface "
        "networkPerformanceConfig=NetworkPerformanceConfig "
        "privateIpv6GoogleAccess=ENABLE_BIDIRECTIONAL_ACCESS_TO_GOOGLE|ENABLE_OUTBOUND_VM_ACCESS_TO_GOOGLE|INHERIT_FROM_SUBNETWORK "
        "reservationAffinity=ReservationAffinity resourceManagerTags={text resourcePolicies=[text "
        "scheduling=Scheduling serviceAccounts=[ServiceAccount shieldedInstanceConfig=ShieldedInstanceConfig "
        "tags=Tags workloadIdentityConfig=WorkloadIdentityConfig"
    ),
    "InstancePropertiesPatch": "exposeHostTopology=bool labels={text metadata={text",
    "InstanceTemplate": (
        "creationTimestamp=text description=text id=long kind=text name=text properties=InstanceProperties "
        "region=text selfLink=text sourceInstance=text sourceInstanceParams=SourceInstanceParams"
    ),
    "InstancesSetLabelsRequest": "labelFingerprint=bytes labels={text",
    "LocalizedMessage": "locale=text message=text",
    "Metadata": "fingerprint=bytes items=[MetadataItems kind=text",
    "MetadataItems": "key=text value=text",
    "NamedPort": "name=text port=int",
    "NetworkInterface": (
        "accessConfigs=[AccessConfig aliasIpRanges=[AliasIpRange aliasIpv6Ranges=[AliasIpRange "
        "enableVpcScopedDns=bool fingerprint=bytes igmpQuery=IGMP_QUERY_DISABLED|IGMP_QUERY_V2 "
        "internalIpv6PrefixLength=int ipv6AccessConfigs=[AccessConfig ipv6AccessType=EXTERNAL|INTERNAL "
        "ipv6Address=text kind=text name=text network=text networkAttachment=text networkIP=text "
        "nicType=GVNIC|IDPF|IRDMA|MRDMA|UNSPECIFIED_NIC_TYPE|VIRTIO_NET parentNicName=text queueCount=int "
        "serviceClassId=text stackType=IPV4_IPV6|IPV4_ONLY|IPV6_ONLY subnetwork=text vlan=int"
    ),
    "NetworkPerformanceConfig": "totalEgressBandwidthTier=DEFAULT|TIER_1",
    "QuotaExceededInfo": (
        "dimensions={text futureLimit=float limit=float limitName=text metricName=text "
        "rolloutStatus=IN_PROGRESS|ROLLOUT_STATUS_UNSPECIFIED"
    ),
    "ReservationAffinity": (
        "consumeReservationType=ANY_RESERVATION|NO_RESERVATION|SPECIFIC_RESERVATION|UNSPECIFIED key=text "
        "values=[text"
    ),
    "ResourcePolicy": (
        "creationTimestamp=text description=text "
        "diskConsistencyGroupPolicy=ResourcePolicyDiskConsistencyGroupPolicy "
        "groupPlacementPolicy=ResourcePolicyGroupPlacementPolicy id=long "
        "instanceSchedulePolicy=ResourcePolicyInstanceSchedulePolicy kind=text name=text region=text "
        "resourceStatus=ResourcePolicyResourceStatus selfLink=text "
        "snapshotSchedulePolicy=ResourcePolicySnapshotSchedulePolicy "
        "status=CREATING|DELETING|EXPIRED|INVALID|READY workloadPolicy=ResourcePolicyWorkloadPolicy"
    ),
    "ResourcePolicyDailyCycle": "daysInCycle=int duration=text startTime=text",
    "ResourcePolicyDiskConsistencyGroupPolicy": "",
    "ResourcePolicyGroupPlacementPolicy": (
        "acceleratorTopologyMode=AUTO_CONNECT|PROVISION_ONLY availabilityDomainCount=int "
        "collocation=COLLOCATED|UNSPECIFIED_COLLOCATION gpuTopology=text vmCount=int"
    ),
    "ResourcePolicyHourlyCycle": "duration=text hoursInCycle=int startTime=text",
    "ResourcePolicyInstanceSchedulePolicy": (
        "expirationTime=text startTime=text timeZone=text "
        "vmStartSchedule=ResourcePolicyInstanceSchedulePolicySchedule "
        "vmStopSchedule=ResourcePolicyInstanceSchedulePolicySchedule"
    ),
    "ResourcePolicyInstanceSchedulePolicySchedule": "schedule=text",
    "ResourcePolicyResourceStatus": (
        "instanceSchedulePolicy=ResourcePolicyResourceStatusInstanceSchedulePolicyStatus"
    ),
    "ResourcePolicyResourceStatusInstanceSchedulePolicyStatus": "lastRunStartTime=text nextRunStartTime=text",
    "ResourcePolicySnapshotSchedulePolicy": (
        "retentionPolicy=ResourcePolicySnapshotSchedulePolicyRetentionPolicy "
        "schedule=ResourcePolicySnapshotSchedulePolicySchedule "
        "snapshotProperties=ResourcePolicySnapshotSchedulePolicySnapshotProperties"
    ),
    "ResourcePolicySnapshotSchedulePolicyRetentionPolicy": (
        "maxRetentionDays=int "
        "onSourceDiskDelete=APPLY_RETENTION_POLICY|KEEP_AUTO_SNAPSHOTS|UNSPECIFIED_ON_SOURCE_DISK_DELETE"
    ),
    "ResourcePolicySnapshotSchedulePolicySchedule": (
        "dailySchedule=ResourcePolicyDailyCycle hourlySchedule=ResourcePolicyHourlyCycle "
        "weeklySchedule=ResourcePolicyWeeklyCycle"
    ),
    "ResourcePolicySnapshotSchedulePolicySnapshotProperties": (
        "chainName=text guestFlush=bool labels={text storageLocations=[text"
    ),
    "ResourcePolicyWeeklyCycle": "dayOfWeeks=[ResourcePolicyWeeklyCycleDayOfWeek",
    "ResourcePolicyWeeklyCycleDayOfWeek": (
        "day=FRIDAY|INVALID|MONDAY|SATURDAY|SUNDAY|THURSDAY|TUESDAY|WEDNESDAY duration=text startTime=text"
    ),
    "ResourcePolicyWorkloadPolicy": (
        "acceleratorTopology=text acceleratorTopologyMode=AUTO_CONNECT|PROVISION_ONLY "
        "maxTopologyDistance=BLOCK|CLUSTER|SUBBLOCK type=HIGH_AVAILABILITY|HIGH_THROUGHPUT"
    ),
    "ResourceStatus": (
        "effectiveInstanceMetadata=ResourceStatusEffectiveInstanceMetadata physicalHost=text "
        "physicalHostTopology=ResourceStatusPhysicalHostTopology "
        "reservationConsumptionInfo=ResourceStatusReservationConsumptionInfo "
        "scheduling=ResourceStatusScheduling shutdownDetails=ResourceStatusShutdownDetails "
        "upcomingMaintenance=UpcomingMaintenance"
    ),
    "ResourceStatusEffectiveInstanceMetadata": (
        "blockProjectSshKeysMetadataValue=bool enableGuestAttributesMetadataValue=bool "
        "enableOsInventoryMetadataValue=bool enableOsconfigMetadataValue=bool enableOsloginMetadataValue=bool "
        "gceContainerDeclarationMetadataValue=bool serialPortEnableMetadataValue=bool "
        "serialPortLoggingEnableMetadataValue=bool vmDnsSettingMetadataValue=text"
    ),
    "ResourceStatusPhysicalHostTopology": (
        "additionalAttributes=ResourceStatusPhysicalHostTopologyAdditionalAttributes block=text cluster=text "
        "host=text subblock=text"
    ),
    "ResourceStatusPhysicalHostTopologyAdditionalAttributes": "acceleratorTopologyIds={text",
    "ResourceStatusReservationConsumptionInfo": "consumedReservation=text consumedReservationBlock=text consumedReservationSubBlock=text",
    "ResourceStatusScheduling": (
        "availabilityDomain=int gracefulShutdownTimestamp=text "
        "protectionTier=PROTECTION_TIER_CAPACITY_OPTIMIZED|PROTECTION_TIER_STANDARD|PROTECTION_TIER_UNSPECIFIED "
        "terminationTimestamp=text"
    ),
    "ResourceStatusShutdownDetails": (
        "maxDuration=Duration requestTimestamp=text stopState=PENDING_STOP|STOPPING "
        "targetState=DELETED|STOPPED"
    ),
    "Scheduling": (
        "automaticRestart=bool availabilityDomain=int exposeHostTopology=bool "
        "gracefulShutdown=SchedulingGracefulShutdown hostErrorTimeoutSeconds=int "
        "instanceTerminationAction=DELETE|INSTANCE_TERMINATION_ACTION_UNSPECIFIED|STOP "
        "localSsdRecoveryTimeout=Duration locationHint=text maxRunDuration=Duration minNodeCpus=int "
        "nodeAffinities=[SchedulingNodeAffinity onHostMaintenance=MIGRATE|TERMINATE "
        "onInstanceStopAction=SchedulingOnInstanceStopAction preemptible=bool "
        "preemptionNoticeDuration=Duration "
        "protectionTier=PROTECTION_TIER_CAPACITY_OPTIMIZED|PROTECTION_TIER_STANDARD|PROTECTION_TIER_UNSPECIFIED "
        "provisioningModel=FLEX_START|RESERVATION_BOUND|SPOT|STANDARD skipGuestOsShutdown=bool "
        "terminationTime=text"
    ),
    "SchedulingGracefulShutdown": "enabled=bool maxDuration=Duration",
    "SchedulingNodeAffinity": "key=text operator=IN|NOT_IN|OPERATOR_UNSPECIFIED values=[text",
    "SchedulingOnInstanceStopAction": "discardLocalSsd=bool",
    "ServiceAccount": "email=text scopes=[text",
    "ShieldedInstanceConfig": "enableIntegrityMonitoring=bool enableSecureBoot=bool enableVtpm=bool",
    "ShieldedInstanceIntegrityPolicy": "updateAutoLearnPolicy=bool",
    "SourceInstanceParams": "diskConfigs=[DiskInstantiationConfig",
    "StatefulPolicy": "preservedState=StatefulPolicyPreservedState",
    "StatefulPolicyPreservedState": (
        "disks={StatefulPolicyPreservedStateDiskDevice externalIPs={StatefulPolicyPreservedStateNetworkIp "
        "internalIPs={StatefulPolicyPreservedStateNetworkIp"
    ),
    "StatefulPolicyPreservedStateDiskDevice": "autoDelete=NEVER|ON_PERMANENT_INSTANCE_DELETION",
    "StatefulPolicyPreservedStateNetworkIp": "autoDelete=NEVER|ON_PERMANENT_INSTANCE_DELETION",
    "Tags": "fingerprint=bytes items=[text",
    "TestPermissionsRequest": "permissions=[text",
    "UpcomingMaintenance": (
        "canReschedule=bool latestWindowStartTime=text maintenanceOnShutdown=bool "
        "maintenanceReasons=[FAILURE_CUSTOMER_REPORTED|FAILURE_DISK|FAILURE_GPU|FAILURE_GPU_MULTIPLE_FAULTY_HOSTS_CUSTOMER_REPORTED|FAILURE_GPU_NVLINK_SWITCH_CUSTOMER_REPORTED|FAILURE_GPU_TEMPERATURE|FAILURE_GPU_XID|FAILURE_INFRA|FAILURE_INTERFACE|FAILURE_MEMORY|FAILURE_NETWORK|FAILURE_NVLINK|FAILURE_REDUNDANT_HARDWARE_FAULT|FAILURE_TPU|INFRASTRUCTURE_RELOCATION|MAINTENANCE_REASON_UNKNOWN|PLANNED_NETWORK_UPDATE|PLANNED_UPDATE "
        "maintenanceStatus=ONGOING|PENDING|UNKNOWN type=MULTIPLE|SCHEDULED|UNKNOWN_TYPE|UNSCHEDULED "
        "windowEndTime=text windowStartTime=text"
    ),
    "WorkloadIdentityConfig": (
        "identity=text identityCertificateEnabled=bool "
        "identityType=AGENT_IDENTITY|IDENTITY_TYPE_UNSPECIFIED|SERVICE_ACCOUNT"
    ),
}
# fmt: on


@functools.cache
def fields(schema: str) -> Mapping[str, str]:
    """The types of a schema's fields, by their names."""
    return dict(pair.split("=", 1) for pair in SCHEMAS[schema].split())


def check(schema: str, body: Any, at: str = "") -> None:
    """Raise Refusal if a body is not of a schema."""
    if not isinstance(body, dict):
        raise compute_refusals.typed(at, f"type.googleapis.com/google.cloud.compute.v1.{schema}", body)
    known = fields(schema)
    for name, value in body.items():
        if name not in known:
            raise compute_refusals.unknown_name(name, at)
        if value is not None:
            _value(known[name], value, f"{at}.{name}".removeprefix("."))


def _value(kind: str, value: Any, at: str) -> None:
    if kind.startswith("["):
        if not isinstance(value, list):
            raise compute_refusals.typed(at, "a list", value)
        for index, item in enumerate(value):
            _value(kind[1:], item, f"{at}[{index}]")
    elif kind.startswith("{"):
        if not isinstance(value, dict):
            raise compute_refusals.typed(at, "an object", value)
        for name, item in value.items():
            _value(kind[1:], item, f"{at}[{name}]")
    elif kind in SCHEMAS:
        check(kind, value, at)
    elif "|" in kind:
        if value not in kind.split("|"):
            raise compute_refusals.typed(at, "TYPE_ENUM", value)
    elif not _KINDS[kind](value):
        raise compute_refusals.typed(at, f"TYPE_{_NAMES[kind]}", value)


def _is_long(value: Any) -> bool:
    is_one = isinstance(value, int | str) and not isinstance(value, bool)
    return is_one and bool(re.fullmatch(r"-?\d{1,20}", str(value)))


def _is_bytes(value: Any) -> bool:
    try:
        return isinstance(value, str) and base64.urlsafe_b64decode(value) is not None
    except (binascii.Error, ValueError):
        return False


_NAMES: Final = {
    "text": "STRING", "bool": "BOOL", "int": "INT32", "long": "INT64", "float": "DOUBLE", "bytes": "BYTES",
}  # fmt: skip
_KINDS: Final[Mapping[str, Callable[[Any], bool]]] = {
    "text": lambda value: isinstance(value, str),
    "bool": lambda value: isinstance(value, bool),
    "int": lambda value: _is_long(value) and -(1 << 31) <= int(value) < 1 << 31,
    "long": _is_long,
    "float": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "bytes": _is_bytes,
}
